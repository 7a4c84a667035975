"""RunOptions: the options that all measuring commands have in common."""

from dataclasses import dataclass, fields
from typing import Annotated

from specbench.specs.components import Chat, DeviceMap, Dtype, EngineName, Quantize

FLAGS = {"subsets": "--subset", "overrides": "--set"}  # fields with another name on the command line
# Examples of the bundled sample that `specbench run` measures without --limit: of all subsets, and at least of each.
SHARE, LEAST = 96, 8


@dataclass(frozen=True)
class RunOptions:
    """The models, data, amounts and conditions of a run as the user gives them, not yet validated, with their help.

    Options with the name of a RunSpec field have its meaning and default. `target`: None is the embedded target.
    `overrides`: KEY=VALUE pairs for the specs of tasks and methods. `threads`: CPU threads; None is 1 for the embedded
    target, else the library's default.
    """

    subsets: Annotated[
        tuple[str, ...] | None, "Subsets (languages), separated by commas; all that have data when absent."
    ] = None
    target: Annotated[str | None, "Target model: hub id or folder; the embedded family when absent."] = None
    drafter: Annotated[str | None, "Draft model: hub id, folder, or embedded:NAME."] = None
    target_revision: Annotated[str | None, "Hub revision of the target."] = None
    drafter_revision: Annotated[str | None, "Hub revision of the drafter."] = None
    data: Annotated[
        str | None,
        "Where rows come from: hub, sample (bundled), a folder or a file; sample for the embedded target, else hub.",
    ] = None
    limit: Annotated[
        int | float | None, "Examples of each subset: a number, or a share such as 0.1; all when absent."
    ] = None
    subsets_per_task: Annotated[int | None, "The first N subsets of each task."] = None
    repeats: Annotated[int, "Times that every example is measured."] = 1
    seed: Annotated[int, "Seed of every random stream."] = 0
    dtype: Annotated[
        Dtype,
        "auto, float32, bfloat16 or float16; auto: float32 on a CPU, else the dtype of the checkpoint.",
    ] = "auto"
    device: Annotated[str, "auto, cuda, mps or cpu; auto: the first of these that the machine has."] = "auto"
    quantize: Annotated[
        Quantize, "Precision of the target's weights: none, or nf4 or int8 by bitsandbytes; needs a CUDA device."
    ] = "none"
    device_map: Annotated[
        DeviceMap, "auto: accelerate spreads the target over all devices; none: it is on one device."
    ] = "none"
    engine: Annotated[
        EngineName,
        "How passes are run. eager: as transformers makes them; graphs: recorded as CUDA graphs; compiled: by "
        "torch.compile; auto: graphs on cuda, else eager.",
    ] = "auto"
    chat: Annotated[Chat, "Chat template: auto (if the model has one), always or never."] = "auto"
    chat_template_args: Annotated[
        tuple[str, ...], "Variables of the chat template, KEY=VALUE separated by commas: enable_thinking=false"
    ] = ()
    threads: Annotated[int | None, "CPU threads; 1 for the embedded target, else torch's choice, when absent."] = None
    overrides: Annotated[tuple[str, ...], "Override a key: verification.threshold=0.3"] = ()
    trust_remote_code: Annotated[
        bool, "Run the Python code that comes with a checkpoint whose architecture transformers lacks."
    ] = False
    allow_code_execution: Annotated[bool, "Run the programs that the models write, to score them."] = False

    def words(self) -> list[str]:
        """Returns these options as command-line arguments, without those that have their default."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            flag = flag_of(field.name)
            if field.name == "overrides":
                words += [word for override in value for word in (flag, override)]
            elif value is True:
                words.append(flag)
            else:
                words += [flag, ",".join(value) if isinstance(value, tuple) else str(value)]
        return words


def flag_of(name: str) -> str:
    """Returns the option of the command line for a field of RunOptions."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")
