"""What several commands take and parse in the same way."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.core.errors import ConfigError

Subset = Annotated[
    str | None, typer.Option(help="Subsets (languages), separated by commas; all that have data when absent.")
]
Target = Annotated[str | None, typer.Option(help="Target model: hub id or folder; the embedded family when absent.")]
Drafter = Annotated[str | None, typer.Option(help="Draft model: hub id, folder, or embedded:NAME.")]
TargetRevision = Annotated[str | None, typer.Option(help="Hub revision of the target.")]
DrafterRevision = Annotated[str | None, typer.Option(help="Hub revision of the drafter.")]
Data = Annotated[str | None, typer.Option(help="hub, sample, or a folder or file of rows.")]
Limit = Annotated[int | None, typer.Option(help="Examples per subset.")]
Repeats = Annotated[int, typer.Option(help="Times that every example is measured.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override a key: verification.threshold=0.3")]
Seed = Annotated[int, typer.Option(help="Seed of every random stream.")]
SamplePrompt = Annotated[
    str,
    typer.Option(
        "--prompt", help="Text that sampled texts go on from; empty: the token that begins a text; the paper: ' '."
    ),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")]
Engine = Annotated[
    str,
    typer.Option(
        help="How passes are run. eager: as transformers makes them; graphs: recorded as CUDA graphs; compiled: by "
        "torch.compile; auto: graphs on cuda, else eager."
    ),
]
Chat = Annotated[str, typer.Option(help="Chat template: auto, always or never.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; 1 for the embedded pair, else torch's choice.")]

LARGEST, LARGEST_SEED = 10**9, 2**63 - 1
LONGEST_NAME = 255  # bytes of a file's name, on all usual file systems

flag = partial(typer.Option, metavar="")  # an option that is there or not: without a value in the help


def split(names: str) -> list[str]:
    """The parts of a comma-separated option, without blanks."""
    return [part.strip() for part in names.split(",") if part.strip()]


def path(option: str, text: str | None) -> Path | None:
    """The path that an option gives. Raises ConfigError for an empty one, which would mean the current folder, and for
    a name that no file can have."""
    if text is None:
        return None
    if not text.strip():
        raise ConfigError(f"{option} '{text}': is empty: give a path, or leave the option out")
    longest = max(Path(text).parts, key=lambda name: len(name.encode()), default="")
    if (size := len(longest.encode())) > LONGEST_NAME:
        problem = f"a name of {size} bytes, but a file's name has at most {LONGEST_NAME}: shorten it"
        raise ConfigError(f"{option} {longest[:20]}…: {problem}")
    return Path(text)


def check_words(words: Sequence[str]) -> None:
    """Raise ConfigError for a word that is not UTF-8 or holds NUL: rows keep the command, and could not be written."""
    for word in words:
        shown = word.encode("utf-8", "backslashreplace").decode()
        if shown != word:
            raise ConfigError(f"'{shown}': is not UTF-8: rename the file or folder, or correct the word")
        if "\0" in word:
            raise ConfigError(f"{word!r}: holds the character NUL, which no name of a file has: leave it out")


def bound_numbers(app: typer.Typer) -> None:
    """Have all commands refuse whole numbers that no computation holds, by the name of the option."""
    for command in app.registered_commands:
        command.callback = command.callback and _bounded(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            bound_numbers(group.typer_instance)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(**given: Any) -> Any:
        for name, value in given.items():
            largest = LARGEST_SEED if name == "seed" else LARGEST
            if isinstance(value, int) and abs(value) > largest:
                side = f"at most {largest}" if value > 0 else f"at least {-largest}"
                raise ConfigError(f"--{name.replace('_', '-')} {value}: give {side}")
        return function(**given)

    return call
