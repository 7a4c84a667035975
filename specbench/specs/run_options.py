"""RunOptions: the options that the measuring commands share. Every command imports them, so they need no other spec."""

from dataclasses import dataclass, fields
from typing import Annotated

from specbench.specs.components import Chat, DeviceMap, Dtype, EngineName, PromptChecks, Quantize, SamplingSource

FLAGS = {"subsets": "--subset", "overrides": "--set"}  # fields with another name on the command line
# Examples of the bundled sample that `specbench run` measures without --limit: over all subsets, and at least of each.
SHARE, LEAST = 96, 8

# Options that only affect how a target is loaded, with the values at which they have no effect.
TARGET_OPTIONS = {"quantize": "none", "device_map": "none", "trust_remote_code": False}


@dataclass(frozen=True)
class RunOptions:
    """The models, data, amounts and conditions of a run, with their help texts, before validation.

    Options with the name of a RunSpec field have its meaning and default. `target`: None is the embedded target.
    `overrides`: KEY=VALUE pairs for the specs of tasks and methods. `threads`: CPU threads; None means 1 for the
    embedded target, else torch's default.
    """

    subsets: Annotated[
        tuple[str, ...] | None, "Subsets (languages), separated by commas; by default all with data."
    ] = None
    target: Annotated[str | None, "Target model: hub id or folder; by default the embedded one."] = None
    drafter: Annotated[str | None, "Draft model: hub id, folder, or embedded:NAME."] = None
    target_revision: Annotated[str | None, "Hub revision of the target."] = None
    drafter_revision: Annotated[str | None, "Hub revision of the drafter."] = None
    data: Annotated[
        str | None,
        "Source of the rows: hub, sample (bundled), a folder or a file; by default sample for the embedded target, "
        "else hub.",
    ] = None
    limit: Annotated[
        int | float | None, "Examples of each subset: a number, or a share such as 0.1; by default all."
    ] = None
    subsets_per_task: Annotated[int | None, "Measure only the first N subsets of each task."] = None
    repeats: Annotated[int, "Measurements per example."] = 1
    seed: Annotated[int, "Seed of every random stream."] = 0
    dtype: Annotated[
        Dtype,
        "auto, float32, bfloat16 or float16; auto: float32 on a CPU, else the dtype of the checkpoint.",
    ] = "auto"
    device: Annotated[str, "auto, cuda, mps or cpu; auto: the first available."] = "auto"
    quantize: Annotated[
        Quantize, "Precision of the target's weights: none, or nf4 or int8 by bitsandbytes; needs a CUDA device."
    ] = "none"
    device_map: Annotated[
        DeviceMap, "auto: accelerate spreads the target over all devices; none: it is on one device."
    ] = "none"
    engine: Annotated[
        EngineName,
        "How passes run. eager: as in transformers; graphs: recorded as CUDA graphs; compiled: by torch.compile; "
        "auto: graphs on cuda, else eager.",
    ] = "auto"
    chat: Annotated[Chat, "Chat template: auto (if the model has one), always or never."] = "auto"
    chat_template_args: Annotated[
        tuple[str, ...], "Variables of the chat template, KEY=VALUE separated by commas: enable_thinking=false"
    ] = ()
    template_date: Annotated[
        str | None,
        "Date that chat templates print: today or YYYY-MM-DD; by default 2024-07-26, or that of a resumed run.",
    ] = None
    system_instruction: Annotated[
        str | None, "System prompt, in place of the task's own; by default the task's (key system)."
    ] = None
    sampling: Annotated[
        SamplingSource,
        "Source of temperature, top-k and top-p: task, or model (the checkpoint's generation_config.json).",
    ] = "task"
    prompt_checks: Annotated[
        PromptChecks,
        "What follows if the chat template drops the user's text or the tokenizer ends prompts: refuse or warn.",
    ] = "refuse"
    warm_up: Annotated[
        float | None,
        "Seconds that the warm-up may take; each method decodes at least one block. By default 10 % of the expected "
        "measurement.",
    ] = None
    threads: Annotated[int | None, "CPU threads; by default 1 for the embedded target, else torch's default."] = None
    overrides: Annotated[tuple[str, ...], "Override a key: verification.threshold=0.3"] = ()
    trust_remote_code: Annotated[
        bool, "Run the Python code that comes with a checkpoint whose architecture transformers lacks."
    ] = False
    allow_code_execution: Annotated[bool, "Run the programs that the models write, to score them."] = False

    def words(self) -> list[str]:
        """Returns the options that differ from their defaults, as command-line arguments."""
        words = []
        for field in fields(self):
            value, flag = getattr(self, field.name), flag_of(field.name)
            if value is True:
                words.append(flag)
            elif field.name == "overrides":
                words += [word for override in value for word in (flag, override)]
            elif value != field.default:
                words += [flag, ",".join(value) if isinstance(value, tuple) else str(value)]
        return words


def flag_of(name: str) -> str:
    """Returns the command-line option of a RunOptions field."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")
