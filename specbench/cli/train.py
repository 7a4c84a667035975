"""`specbench train`: one command for each kind of drafter."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, get_args, get_origin

import typer

from specbench.cli.arguments import PAIR, BoundedCommand, command_line, path, split, takes_run_options
from specbench.cli.help.parameters import Parameter, field_parameters
from specbench.cli.help.text import WIDTH, shown
from specbench.core.console import INTERRUPTED, stderr, stdout
from specbench.core.errors import ConfigError
from specbench.core.extras import require
from specbench.specs.components import AnySpec, Spec
from specbench.specs.run import RunOptions
from specbench.training.spec import BLOCKS, CORPUS_MODELS, DEFAULTS, EXAMPLES, HEADS, NOT_FOR_HEADS, TrainSpec

train = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@train.callback()
def about() -> None:
    """Train a drafter for a target model."""


Config = Annotated[str | None, typer.Option(help="YAML file of settings; options and --set override it.")]
Task = Annotated[str | None, typer.Option(help="Tasks, separated by commas; world:NAME for the embedded world's.")]
Texts = Annotated[list[str] | None, typer.Option(help="LANGUAGE=FILE: texts, one per line (.txt) or as .jsonl.")]
DATA = ("subsets", "limit", "data")  # run options
Seed = Annotated[int | None, typer.Option(help="Seed of every random stream.")]


def spec_keys(kind: str) -> Iterator[Parameter]:
    """Yields the keys of a training kind. Keys of nested specs have dotted names."""
    model: type[Spec] = TrainSpec if kind in DEFAULTS else CORPUS_MODELS[kind]
    for parameter in nested_keys(model, "", DEFAULTS.get(kind, {})):
        block = parameter.key.partition(".")[0]
        has_effect = block == kind or block not in (*BLOCKS, *(NOT_FOR_HEADS if kind in HEADS else ()))
        if block != "kind" and has_effect:
            yield parameter


def nested_keys(model: type[Spec], place: str, defaults: Mapping[str, Any]) -> Iterator[Parameter]:
    """Yields the keys of a spec in order. The keys of an optional nested spec follow the key of the spec."""
    parameters = field_parameters(model, place, defaults, set())
    for parameter, field in zip(parameters, model.model_fields.values(), strict=True):
        key = parameter.key.removeprefix(".")
        part = nested_spec(field.annotation)
        if part is None or (field.default is None and key not in BLOCKS):
            yield parameter.model_copy(update={"key": key})
        if part is not None:
            yield from nested_keys(part, key, {})


def nested_spec(annotation: Any) -> type[Spec] | None:
    """Returns the spec type of a key's value, or None. A mapping has none, since the user chooses its keys."""
    types = () if get_origin(annotation) is dict else (annotation, *get_args(annotation))
    return next((type_ for type_ in types if isinstance(type_, type) and issubclass(type_, Spec)), None)


def key_lines(parameter: Parameter) -> list[str]:
    """Returns `key = default (choices): description`, wrapped."""
    value = shown(parameter.value)
    default = "must be given" if parameter.value is None and parameter.required else f"= {value}"
    bounds = f" ({parameter.range})" if parameter.type == "one of" else ""
    meaning = f": {parameter.meaning}" if parameter.meaning else ""
    return wrap(f"{parameter.key} {default}{bounds}{meaning}", WIDTH, initial_indent="  ", subsequent_indent="      ")


class WithKeys(BoundedCommand):
    """A command whose help lists the keys of --set and --config at the end."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        assert self.name is not None
        lines = [line for key in spec_keys(self.name) for line in key_lines(key)]
        stdout.out("\n".join(["Keys of --set and --config:", *lines]))


Corpus = Annotated[
    list[str] | None, typer.Option(help="Text files of any size: .txt, one document per line, or .jsonl; also .gz.")
]
MoreFiles = Annotated[list[str] | None, typer.Argument(metavar="FILE", help="More files of the corpus.")]
Column = Annotated[str | None, typer.Option(help="Column of a .jsonl file with the text; by default text.")]
ROWS = (
    "Source of the rows of --task: hub (the default), sample (the bundled rows, which `specbench run` measures), a "
    "folder or a file; not needed for world:NAME."
)


CORPUS_KINDS = {
    "ngram": "Count the n-grams of texts in the target's tokens, for drafts by the method ngram.",
    "retrieval": "Sort the tokens of texts into a datastore, for drafts by the method rest.",
}
NOUNS = {"ngram": "n-gram model", "retrieval": "datastore"}
METHODS = {"ngram": "ngram", "retrieval": "rest"}  # the methods that use the models


def corpus_trainer(kind: str) -> Callable[..., None]:
    """Returns the command that builds one kind of model from a corpus."""

    @takes_run_options(
        only=("target", "target_revision", *DATA, "trust_remote_code"),
        without=() if "order" in CORPUS_MODELS[kind].model_fields else ("order",),
        data=ROWS,
    )
    def command(
        corpus: Corpus = None,
        more: MoreFiles = None,
        config: Config = None,
        task: Task = None,
        *,
        options: RunOptions,
        text: Texts = None,
        column: Column = None,
        order: Annotated[int | None, typer.Option(help="Tokens of the longest n-gram; by default 2 (bigrams).")] = None,
        output: Annotated[
            str | None, typer.Option(help=f"Folder of the {NOUNS[kind]}; an existing {NOUNS[kind]} is replaced.")
        ] = None,
        seed: Seed = None,
        set_: Annotated[list[str] | None, typer.Option("--set", help=f"Any key: {EXAMPLES[kind]}")] = None,
    ) -> None:
        from specbench.training.corpus import build_from_corpus

        path("--output", output)
        given = {
            "target": options.target, "target_revision": options.target_revision,
            "trust_remote_code": options.trust_remote_code or None, **data_options(task, text, options),
            "data.corpus": [*(corpus or []), *(more or [])] or None, "data.column": column, "order": order,
            "seed": seed, "output": output,
        }  # fmt: skip
        spec = settings(CORPUS_MODELS[kind], kind, config, given, set_)
        try:
            record = build_from_corpus(spec, stderr, command_line())
        except KeyboardInterrupt:
            stderr.print("interrupted: nothing was saved, and the output folder is unchanged", soft_wrap=True)
            sys.exit(INTERRUPTED)
        folder = Path(spec.output)
        stdout.print(f"{folder}: {record.summary()}", soft_wrap=True)
        stderr.print(f"draft with it: --method {METHODS[kind]} --set drafter.path={folder}", soft_wrap=True)

    return command


NUM_STEPS = {
    "scdf": "250 with 4 passes each (the paper's 1,000 draws, as we read it)",
    "distill": "800 (as in the paper)",
    **{kind: f"the number that {kind}.epochs needs" for kind in ("finetune", "medusa", "eagle", "eagle3")},
}


def trainer(kind: str) -> Callable[..., None]:
    """Returns the command of one training kind. All kinds have the same options; --set sets all other keys."""

    @takes_run_options(only=(*PAIR, *DATA, "threads", "trust_remote_code"), data=ROWS)
    def command(
        config: Config = None,
        task: Task = None,
        *,
        options: RunOptions,
        text: Texts = None,
        output: Annotated[
            str | None, typer.Option(help="Folder of the trained drafter; an unfinished training is resumed.")
        ] = None,
        num_steps: Annotated[
            int | None,
            typer.Option(help=f"Updates of the weights; by default {NUM_STEPS[kind]}."),
        ] = None,
        learning_rate: Annotated[
            str | None, typer.Option(help="One, or several separated by commas; the validation loss selects one.")
        ] = None,
        seed: Seed = None,
        dtype: Annotated[
            str | None,
            typer.Option(
                help="auto, float32 or bfloat16 (mixed precision); the drafter is saved in its original dtype."
            ),
        ] = None,
        device: Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu.")] = None,
        set_: Annotated[list[str] | None, typer.Option("--set", help=f"Any key: {EXAMPLES[kind]}")] = None,
    ) -> None:
        path("--output", output)
        given = {
            **{name: getattr(options, name) for name in PAIR}, **data_options(task, text, options), "output": output,
            "num_steps": num_steps, "learning_rate": learning_rates(learning_rate), "seed": seed,
            "dtype": dtype, "device": device, "trust_remote_code": options.trust_remote_code or None,
        }  # fmt: skip
        spec = settings(TrainSpec, kind, config, given, set_)
        from specbench.training.command import measurement_command, run_training

        record = run_training(spec, options.threads, stderr, command_line())
        if record is None:  # this is not the main process, or the training was already finished
            return
        folder = Path(spec.output)
        stdout.print(f"{folder}: {record.summary()}", soft_wrap=True)
        stderr.print(f"measure it: {measurement_command(record.settings, folder)}", soft_wrap=True)

    return command


def settings(
    model: type[AnySpec], kind: str, config: str | None, options: Mapping[str, Any], overrides: list[str] | None
) -> AnySpec:
    """Returns the validated settings of --config, the options and --set."""
    require("accelerate", f"specbench train {kind}")
    from specbench.training.command import read_settings

    return read_settings(model, kind, path("--config", config), options, overrides or [])


def learning_rates(text: str | None) -> Any:
    """Returns the numbers of a comma-separated list."""
    from specbench.specs import yaml_files

    return None if text is None else yaml_files.parse(f"[{text}]", f"--learning-rate {text}")


def data_options(task: str | None, text: list[str] | None, options: RunOptions) -> dict[str, Any]:
    """Returns the training-data options by key."""
    return {
        "data.tasks": task and split(task), "data.subsets": options.subsets, "data.limit": options.limit,
        "data.source": options.data, "data.text": files_by_language(text),
    }  # fmt: skip


def files_by_language(texts: list[str] | None) -> dict[str, str] | None:
    """Returns the files of --text by language. Raises ConfigError for a value without a language or file, and for a
    language that is given twice."""
    if texts is None:
        return None
    for text in texts:
        if not all(part.strip() for part in text.partition("=")):
            raise ConfigError(f"--text '{text}': write it as LANGUAGE=FILE, such as --text en=english.txt")
    files: dict[str, str] = {}
    for language, _, file in (text.partition("=") for text in texts):
        if language in files:
            raise ConfigError(
                f"--text {language}={file}: '{language}' already has the file {files[language]}: give one file per "
                "language, with the texts of both"
            )
        files[language] = file
    return files


KINDS = {
    "scdf": "Fine-tune a drafter on the target's continuations, weighting the languages that it drafts worst most.",
    "distill": "Distil the target's most probable tokens into a drafter, on answers to a task or on raw text.",
    "finetune": "Pretrain a drafter on texts, or fine-tune it on text that the target generates.",
    "medusa": "Train Medusa heads on text that the target generates.",
    "eagle": "Train an EAGLE-1 head, which EAGLE-2 also uses, on text that the target generates.",
    "eagle3": "Train an EAGLE-3 head on text that the target generates.",
}
for kind, summary in CORPUS_KINDS.items():
    train.command(kind, cls=WithKeys, help=summary)(corpus_trainer(kind))
for kind, summary in KINDS.items():
    train.command(kind, cls=WithKeys, help=f"{summary} The same command resumes a training.")(trainer(kind))
