"""`specbench train`: one command for each kind of drafter that can be trained."""

import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from specbench.cli import arguments
from specbench.cli.arguments import path, split
from specbench.core.console import INTERRUPTED, stderr, stdout
from specbench.core.errors import ConfigError
from specbench.training.settings import EXAMPLES

if TYPE_CHECKING:
    from specbench.training.command import TrainRequest

train = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@train.callback()
def about() -> None:
    """Train a drafter for a target model."""


Config = Annotated[str | None, typer.Option(help="YAML file; options and --set win over it.")]
Task = Annotated[str | None, typer.Option(help="Tasks, separated by commas; world:NAME is the embedded world's.")]
Texts = Annotated[list[str] | None, typer.Option(help="LANGUAGE=FILE: texts, a line each (.txt) or of .jsonl.")]
Seed = Annotated[int | None, typer.Option(help="Seed of every random stream.")]


class WithKeys(TyperCommand):
    """A command whose help ends with the keys that it may be given."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from specbench.training.settings import keys_text

        super().format_help(ctx, formatter)
        assert self.name is not None
        stdout.out(keys_text(self.name))


@train.command(cls=WithKeys)
def ngram(
    corpus: Annotated[
        list[str] | None, typer.Option(help="Text files of any size: .txt, one document per line, or .jsonl; also .gz.")
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="More files of the corpus.")] = None,
    config: Config = None,
    target: arguments.Target = None,
    target_revision: arguments.TargetRevision = None,
    task: Task = None,
    subset: arguments.Subset = None,
    limit: arguments.Limit = None,
    data: arguments.Data = None,
    text: Texts = None,
    column: Annotated[str | None, typer.Option(help="Column of a .jsonl file that holds the text: text.")] = None,
    order: Annotated[int | None, typer.Option(help="Tokens of the longest n-gram; 2, bigrams, when absent.")] = None,
    output: Annotated[
        str | None, typer.Option(help="Folder of the model; an n-gram model that is there is replaced.")
    ] = None,
    seed: Seed = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help=f"Any key: {EXAMPLES['ngram']}")] = None,
) -> None:
    """Count the n-grams of texts, as the target's tokenizer splits them; the model drafts for the method ngram."""
    from specbench.training.ngram import execute_counting

    path("--output", output)
    options = {
        "target": target, "target_revision": target_revision, **data_options(task, subset, limit, data, text),
        "data.corpus": [*(corpus or []), *(more or [])] or None, "data.column": column, "order": order,
        "output": output, "seed": seed,
    }  # fmt: skip
    try:
        record, folder = execute_counting(request_of("ngram", config, options, set_), stderr)
    except KeyboardInterrupt:
        stderr.print("interrupted: nothing of it is left, and the output folder is as it was", soft_wrap=True)
        sys.exit(INTERRUPTED)
    stdout.print(f"{folder}: {record.summary()}", soft_wrap=True)
    stderr.print(f"draft with it: --method ngram --set drafter.path={folder}", soft_wrap=True)


NUM_STEPS = {
    "scdf": "250 of 4 passes (the paper's 1,000 draws, as we read it)",
    "distill": "800 (the paper's)",
    "finetune": "as many as finetune.epochs take",
}


def trainer(kind: str) -> Callable[..., None]:
    """The command of one kind of training; the options are the same, and every other key is set with --set."""

    def command(
        config: Config = None,
        target: arguments.Target = None,
        target_revision: arguments.TargetRevision = None,
        drafter: arguments.Drafter = None,
        drafter_revision: arguments.DrafterRevision = None,
        task: Task = None,
        subset: arguments.Subset = None,
        limit: arguments.Limit = None,
        data: arguments.Data = None,
        text: Texts = None,
        output: Annotated[str | None, typer.Option(help="Folder of the trained drafter; the same one resumes.")] = None,
        num_steps: Annotated[
            int | None,
            typer.Option(help=f"Updates, of gradient_accumulation passes each; {NUM_STEPS[kind]} when absent."),
        ] = None,
        learning_rate: Annotated[
            str | None, typer.Option(help="One, or several separated by commas: the held-back loss chooses.")
        ] = None,
        seed: Seed = None,
        dtype: Annotated[
            str | None, typer.Option(help="auto, float32, or bfloat16 (mixed precision); stored as the drafter was.")
        ] = None,
        device: Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu.")] = None,
        threads: arguments.Threads = None,
        set_: Annotated[list[str] | None, typer.Option("--set", help=f"Any key: {EXAMPLES[kind]}")] = None,
    ) -> None:
        from specbench.training.command import execute, measuring

        path("--output", output)
        options = {
            "target": target, "target_revision": target_revision, "drafter": drafter,
            "drafter_revision": drafter_revision, **data_options(task, subset, limit, data, text), "output": output,
            "num_steps": num_steps, "learning_rate": rates(learning_rate), "seed": seed,
            "dtype": dtype, "device": device,
        }  # fmt: skip
        result = execute(request_of(kind, config, options, set_, threads), stderr)
        if result is None:  # another process of the same training tells, or it was finished before
            return
        record, folder = result
        stdout.print(f"{folder}: {record.summary()}", soft_wrap=True)
        stderr.print(f"measure it: {measuring(record.settings, folder)}", soft_wrap=True)

    return command


def request_of(
    kind: str, config: str | None, options: Mapping[str, Any], overrides: list[str] | None, threads: int | None = None
) -> "TrainRequest":
    """What was asked for, with the command line."""
    from specbench.training.command import TrainRequest

    command_line = shlex.join(["specbench", *sys.argv[1:]])
    return TrainRequest(kind, path("--config", config), options, overrides or [], threads, command_line)


def rates(text: str | None) -> Any:
    """The numbers of a list with commas."""
    from specbench.specs import yaml_files

    return None if text is None else yaml_files.parse(f"[{text}]", f"--learning-rate {text}")


def data_options(
    task: str | None, subset: str | None, limit: int | None, data: str | None, text: list[str] | None
) -> dict[str, Any]:
    """The options that say what is trained on, by their keys."""
    return {
        "data.tasks": task and split(task), "data.subsets": subset and split(subset), "data.limit": limit,
        "data.source": data, "data.text": by_language(text),
    }  # fmt: skip


def by_language(texts: list[str] | None) -> dict[str, str] | None:
    """The files of --text by their language."""
    if texts is None:
        return None
    for text in texts:
        if not all(part.strip() for part in text.partition("=")):
            raise ConfigError(f"--text '{text}': write it as LANGUAGE=FILE, such as --text en=english.txt")
    files: dict[str, str] = {}
    for language, _, file in (text.partition("=") for text in texts):
        if language in files:
            raise ConfigError(
                f"--text {language}={file}: '{language}' has the file {files[language]}: give one file for each "
                "language, with the texts of both"
            )
        files[language] = file
    return files


KINDS = {
    "scdf": "Fine-tune a drafter on the target's continuations, the languages that it misses most weighted most.",
    "distill": "Distil the target's most probable tokens into a drafter: on its answers to a task, or on raw text.",
    "finetune": "Pretrain a drafter on texts, or fine-tune it on what the target generates.",
}
for kind, about_it in KINDS.items():
    train.command(kind, cls=WithKeys, help=about_it + " The same command resumes.")(trainer(kind))
