"""RunOptions: the options of a run, each declared once. The command line, the Python interface, the lm-eval model, the
pairs of suites and the reference take names, types, defaults, bounds and help texts from here."""
# ruff: noqa: RUF009 (`option` returns a dataclass field)

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import Field, create_model

from specbench.specs.components import (
    CacheDtype,
    Chat,
    DeviceMap,
    Dtype,
    EngineName,
    PromptChecks,
    Quantize,
    SamplingSource,
    Spec,
    Text,
)

# Examples of the bundled sample that `specbench run` measures without --limit: over all subsets, and at least of each.
SHARE, LEAST = 96, 8

# Options that only affect how a target is loaded, with the values at which they have no effect.
TARGET_OPTIONS = {"quantize": "none", "device_map": "none", "trust_remote_code": False, "pass_width": None}

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """The declaration of a run option.

    `type`: without bounds; `annotation`: with them, for pydantic. `flag`: its name on the command line, by default
    --NAME. `is_repeated`: the flag is given once for each value; values of other tuples are separated by commas.
    `least`: its minimum.
    """

    name: str
    type: Any
    annotation: Any
    default: Any
    help: str
    flag: str
    is_repeated: bool = False
    least: int | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words; empty if they are not limited."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def is_tuple(self) -> bool:
        return any(get_origin(kind) is tuple for kind in (self.type, *get_args(self.type)))


def option(default: T, help_text: str, **more: str | bool | int) -> T:
    """Declares a field of RunOptions. `more`: attributes of its Option."""
    return field(default=default, metadata={"help": help_text, **more})


@dataclass(frozen=True)
class RunOptions:
    """The models, data, amounts and conditions of a run before validation.

    Options with the name of a RunSpec field have its meaning and default. `target`: None is the embedded target.
    `overrides`: KEY=VALUE pairs for the specs of tasks and methods. `threads`: CPU threads; None means 1 for the
    embedded target, else torch's default.
    """

    subsets: tuple[str, ...] | None = option(
        None, "Subsets (languages), separated by commas; by default all with data.", flag="--subset"
    )
    target: Text | None = option(
        None, "Target model: hub id, folder, GGUF file or org/repo:Q4_K_M; by default the embedded one."
    )
    drafter: Text | None = option(None, "Draft model: hub id, folder, GGUF file, or embedded:NAME.")
    target_revision: Text | None = option(None, "Hub revision of the target.")
    drafter_revision: Text | None = option(None, "Hub revision of the drafter.")
    data: Text | None = option(
        None,
        "Source of the rows: hub, sample (bundled), a folder or a file; by default sample for the embedded target, "
        "else hub.",
    )
    limit: int | float | None = option(
        None, "Examples of each subset: a number, or a share such as 0.1; by default all."
    )
    subsets_per_task: int | None = option(None, "Measure only the first N subsets of each task.", least=1)
    repeats: int = option(1, "Measurements per example.", least=1)
    seed: int = option(0, "Seed of every random stream.", least=0)
    dtype: Dtype = option(
        "auto",
        "auto, float32, bfloat16 or float16; auto: the checkpoint's, but float32 on a CPU, unless the model is large "
        "and the CPU multiplies bfloat16.",
    )
    device: Text = option("auto", "auto, cuda, mps or cpu; auto: the first available.")
    quantize: Quantize = option(
        "none",
        "Precision of the target's weights: none; nf4 or int8 by bitsandbytes on a CUDA device, with --engine eager; "
        "int8 or int4 on a CPU, with --engine eager or compiled.",
    )
    device_map: DeviceMap = option(
        "none", "auto: accelerate spreads the target over all devices; none: it is on one device."
    )
    engine: EngineName = option(
        "auto",
        "How passes run. eager: as in transformers; graphs: recorded as CUDA graphs; compiled: by torch.compile; "
        "llama.cpp: by its kernels, for GGUF files, which the others dequantize; auto: llama.cpp for GGUF files if it "
        "is installed, graphs on cuda, else eager.",
    )
    pass_width: int | None = option(
        None,
        "Compute every pass of the target with N rows, so that its logits do not depend on the tokens of a pass: "
        "shorter ones are padded, longer ones read in parts. On a CPU, with --engine eager, or llama.cpp and N = 1.",
        least=1,
    )
    tokenizer: Text | None = option(
        None, "Tokenizer of a GGUF target: hub id or folder; by default the one in the file."
    )
    drafter_tokenizer: Text | None = option(
        None, "Tokenizer of a GGUF drafter: hub id or folder; by default the one in the file."
    )
    gpu_layers: int | None = option(
        None,
        "Layers of GGUF models that llama.cpp computes on a GPU; by default all if it was built for one, none with "
        "--device cpu.",
        least=0,
    )
    cache_dtype: CacheDtype = option(
        "float16", "Type of llama.cpp's keys and values: float16, or float32, which goes without flash attention."
    )
    chat: Chat = option("auto", "Chat template: auto (if the model has one), always or never.")
    chat_template_args: tuple[Text, ...] = option(
        (), "Variables of the chat template, KEY=VALUE separated by commas: enable_thinking=false"
    )
    template_date: Text | None = option(
        None, "Date that chat templates print: today or YYYY-MM-DD; by default 2024-07-26, or that of a resumed run."
    )
    system_instruction: str | None = option(
        None, "System prompt, in place of the task's own; by default the task's (key system)."
    )
    sampling: SamplingSource = option(
        "task", "Source of temperature, top-k and top-p: task, or model (the checkpoint's generation_config.json)."
    )
    prompt_checks: PromptChecks = option(
        "refuse",
        "Prompts of which the chat template drops the user's text, or to which the tokenizer adds an end token: refuse "
        "them, or warn and measure.",
    )
    warm_up: float | None = option(
        None,
        "Seconds that the warm-up may take; each method decodes at least one block. By default 10 % of the expected "
        "measurement.",
        least=0,
    )
    threads: int | None = option(None, "CPU threads; by default 1 for the embedded target, else torch's default.")
    overrides: tuple[str, ...] = option(
        (), "Override a key: verification.threshold=0.3", flag="--set", is_repeated=True
    )
    trust_remote_code: bool = option(
        False, "Run the Python code that comes with a checkpoint whose architecture transformers lacks."
    )
    allow_code_execution: bool = option(False, "Run the programs that the models write, to score them.")

    def changed(self) -> dict[str, object]:
        """Returns the options that differ from their defaults."""
        return {name: value for name, value in vars(self).items() if value != OPTIONS[name].default}

    def words(self) -> list[str]:
        """Returns the options that differ from their defaults, as command-line arguments."""
        words = []
        for name, value in self.changed().items():
            flag = OPTIONS[name].flag
            if value is True:
                words.append(flag)
            elif not isinstance(value, tuple):
                words += [flag, str(value)]
            elif OPTIONS[name].is_repeated:
                words += [word for each in value for word in (flag, each)]
            else:
                words += [flag, ",".join(value)]
        return words


def split(names: str) -> list[str]:
    """Returns the parts of a comma-separated text, stripped and without empty ones."""
    return [part.strip() for part in names.split(",") if part.strip()]


def flag_of(name: str) -> str:
    """Returns the command-line option of a RunOptions field, also of one that this version lacks."""
    return OPTIONS[name].flag if name in OPTIONS else f"--{name.replace('_', '-')}"


_TYPES, _ANNOTATIONS = get_type_hints(RunOptions), get_type_hints(RunOptions, include_extras=True)
OPTIONS = {
    name: Option(name, _TYPES[name], _ANNOTATIONS[name], each.default, **{
        "flag": f"--{name.replace('_', '-')}", **each.metadata,
    })
    for name, each in RunOptions.__dataclass_fields__.items()
}  # fmt: skip


# The options that lm-eval's --model_args name, by their names there.
MODEL_ARGS = {
    "pretrained": "target", "revision": "target_revision", "override": "overrides",
    **{name: name for name in (
        "drafter", "drafter_revision", "seed", "dtype", "device", "quantize", "device_map", "pass_width",
        "chat_template_args", "template_date", "prompt_checks", "threads", "trust_remote_code",
    )},
}  # fmt: skip


def spec_of(name: str, options: Iterable[str] = OPTIONS) -> type[Spec]:
    """Returns a specification whose keys are run options, by default all."""
    keys: dict[str, Any] = {
        each.name: (Annotated[each.annotation, Field(description=each.help, ge=each.least)], each.default)
        for each in map(OPTIONS.__getitem__, options)
    }
    return create_model(name, __base__=Spec, **keys)


def with_options(
    function: Callable[..., Any], name: str, parameters: Iterable[Parameter], without: Collection[str] = ()
) -> None:
    """Shows parameters in the place of one (`name`) in a function's signature, which typer, help() and editors read.
    `without`: parameters that are not shown."""
    found = signature(function, eval_str=True)
    shown: list[Parameter] = []
    for each in found.parameters.values():
        shown += parameters if each.name == name else [] if each.name in without else [each]
    function.__signature__ = found.replace(parameters=shown)  # type: ignore[attr-defined]
