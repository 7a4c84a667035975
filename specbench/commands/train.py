"""`specbench train`: one command for each kind of drafter that can be trained."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from specbench.commands import arguments
from specbench.commands.arguments import path, split
from specbench.console import INTERRUPTED, stderr, stdout
from specbench.errors import ConfigError

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


NUM_STEPS = {
    "scdf": "250 of 4 passes (the paper's 1,000 draws, as we read it)",
    "distill": "800 (the paper's)",
    "finetune": "as many as finetune.epochs take",
}


def trainer(kind: str) -> Callable[..., None]:
    """The command of one kind of training; the options are the same, and every other key is set with --set."""

    def command(
        config: Annotated[str | None, typer.Option(help="YAML file; options and --set win over it.")] = None,
        target: arguments.Target = None,
        target_revision: arguments.TargetRevision = None,
        drafter: arguments.Drafter = None,
        drafter_revision: arguments.DrafterRevision = None,
        task: Annotated[
            str | None, typer.Option(help="Tasks, separated by commas; world:NAME is the embedded world's.")
        ] = None,
        subset: arguments.Subset = None,
        limit: arguments.Limit = None,
        data: arguments.Data = None,
        text: Annotated[
            list[str] | None, typer.Option(help="LANGUAGE=FILE: texts, a line each (.txt) or of .jsonl.")
        ] = None,
        output: Annotated[str | None, typer.Option(help="Folder of the trained drafter; the same one resumes.")] = None,
        num_steps: Annotated[
            int | None,
            typer.Option(help=f"Updates, of gradient_accumulation passes each; {NUM_STEPS[kind]} when absent."),
        ] = None,
        learning_rate: Annotated[
            str | None, typer.Option(help="One, or several separated by commas: the held-back loss chooses.")
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Seed of every random stream.")] = None,
        dtype: Annotated[str | None, typer.Option(help="auto, float32, or bfloat16 (mixed precision).")] = None,
        device: Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu.")] = None,
        threads: arguments.Threads = None,
        set_: Annotated[list[str] | None, typer.Option("--set", help="Any key: scdf.estimator=sampled")] = None,
    ) -> None:
        from specbench.training.command import TrainRequest, execute

        path("--output", output)
        options = {
            "target": target, "target_revision": target_revision, "drafter": drafter,
            "drafter_revision": drafter_revision, "data.tasks": task and split(task),
            "data.subsets": subset and split(subset), "data.limit": limit, "data.source": data,
            "data.text": by_language(text), "output": output, "num_steps": num_steps,
            "learning_rate": learning_rate and split(learning_rate), "seed": seed, "dtype": dtype, "device": device,
        }  # fmt: skip
        command_line = shlex.join(["specbench", *sys.argv[1:]])
        request = TrainRequest(kind, path("--config", config), options, set_ or [], threads, command_line)
        result = execute(request, stderr)
        if result is None:  # another process of the same training tells
            return
        record, folder = result
        stdout.print(f"{folder}: {record.summary()}", soft_wrap=True)
        stderr.print(f"measure it: specbench run --drafter {folder} …", soft_wrap=True)

    return command


def by_language(texts: list[str] | None) -> dict[str, str] | None:
    """The files of --text by their language."""
    if texts is None:
        return None
    for text in texts:
        if not all(part.strip() for part in text.partition("=")):
            raise ConfigError(f"--text '{text}': write it as LANGUAGE=FILE, such as --text en=english.txt")
    return {language: file for language, _, file in (text.partition("=") for text in texts)}


KINDS = {
    "scdf": "Fine-tune a drafter on the target's continuations, the languages that it misses most weighted most.",
    "distill": "Distil the target's most probable tokens into a drafter: on its answers to a task, or on raw text.",
    "finetune": "Pretrain a drafter on texts, or fine-tune it on what the target generates.",
}
for kind, about_it in KINDS.items():
    train.command(kind, help=about_it + " The same command resumes.")(trainer(kind))
