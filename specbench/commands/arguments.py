"""What several commands take and parse in the same way."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specbench.errors import ConfigError

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
    str, typer.Option(help="eager: passes as transformers makes them; compiled: of fixed shapes, by torch.compile.")
]
Chat = Annotated[str, typer.Option(help="Chat template: auto, always or never.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; 1 for the embedded pair, else torch's choice.")]

flag = partial(typer.Option, metavar="")  # an option that is there or not: without a value in the help


def split(names: str) -> list[str]:
    """The parts of a comma-separated option, without blanks."""
    return [part.strip() for part in names.split(",") if part.strip()]


def path(option: str, text: str | None) -> Path | None:
    """The path that an option gives. Raises ConfigError for an empty one, which would mean the current folder."""
    if text is not None and not text.strip():
        raise ConfigError(f"{option} '{text}': is empty: give a path, or leave the option out")
    return None if text is None else Path(text)
