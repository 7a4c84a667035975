"""`specbench train`: one command for each kind of drafter that can be trained."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench.commands.arguments import path
from specbench.console import INTERRUPTED, stderr, stdout

train = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@train.callback()
def about() -> None:
    """Train a drafter for a target model."""


@train.command()
def ngram(
    corpus: Annotated[list[Path], typer.Option(help="Text files: .txt, one document per line, or .jsonl; also .gz.")],
    output: Annotated[str, typer.Option(help="Folder of the model; an n-gram model that is there is replaced.")],
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files of the corpus.")] = None,
    order: Annotated[int, typer.Option(help="Tokens of the longest n-gram; 2 counts bigrams.", min=1, max=16)] = 2,
    target: Annotated[str, typer.Option(help="The model whose tokens are counted: hub id or folder.")] = (
        "embedded:target"
    ),
    target_revision: Annotated[str | None, typer.Option(help="Hub revision of the target.")] = None,
    column: Annotated[str, typer.Option(help="Column of a .jsonl file that holds the text.")] = "text",
) -> None:
    """Count the n-grams of a corpus, as the target's tokenizer splits it; the model drafts for the method ngram."""
    from specbench.ngram.training import train_ngram

    folder = path("--output", output)
    assert folder is not None
    try:
        trained = train_ngram([*corpus, *(more or [])], column, order, target, target_revision, folder, stderr)
    except KeyboardInterrupt:
        stderr.print(f"interrupted: nothing of it is left, and {folder} is as it was", soft_wrap=True)
        sys.exit(INTERRUPTED)
    stdout.print(f"{folder}: {trained.summary()}", soft_wrap=True)
    stderr.print(f"draft with it: --method ngram --set drafter.path={folder}", soft_wrap=True)
