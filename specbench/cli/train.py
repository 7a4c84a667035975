"""`specbench train`: one command for each kind of drafter."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from specbench.cli.arguments import (
    PAIR,
    BoundedCommand,
    command_line,
    one_of,
    path_option,
    split,
    takes_run_options,
)
from specbench.cli.help.text import Parameter, field_parameters, folded, shown
from specbench.core.console import stderr, stdout
from specbench.core.environment import require
from specbench.core.errors import INTERRUPTED, ConfigError
from specbench.specs.components import Spec
from specbench.specs.run_options import RunOptions
from specbench.training.spec import (
    BLOCKS,
    CORPUS_MODELS,
    DEFAULTS,
    EXAMPLES,
    HEADS,
    NOT_FOR_HEADS,
    CorpusModelSpec,
    TrainSpec,
)

train = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@train.callback()
def about() -> None:
    """Train a drafter for a target model."""


Config = Annotated[Path | None, path_option(help="YAML file of settings; options and --set override it.")]
Task = Annotated[str | None, typer.Option(help="Comma-separated tasks; world:NAME for rows of the embedded world.")]
Texts = Annotated[list[str] | None, typer.Option(help="LANGUAGE=FILE: texts, one per line (.txt) or in a column.")]
DATA = ("subsets", "limit", "data")  # run options


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
        # A mapping has no nested spec, since the user chooses its keys.
        types = () if get_origin(field.annotation) is dict else (field.annotation, *get_args(field.annotation))
        part = next((each for each in types if isinstance(each, type) and issubclass(each, Spec)), None)
        if part is None or (field.default is None and key not in BLOCKS):
            yield replace(parameter, key=key)
        if part is not None:
            yield from nested_keys(part, key, {})


class WithKeys(BoundedCommand):
    """A command whose help lists the keys of --set and --config at the end."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        assert self.name is not None
        lines = ["Keys of --set and --config:"]
        for key in spec_keys(self.name):
            default = "must be given" if key.value is None and key.required else f"= {shown(key.value)}"
            bounds = f" ({key.range})" if key.type == "one of" else ""
            meaning = f": {key.meaning}" if key.meaning else ""
            text = f"{key.key} {default}{bounds}{meaning}"
            lines += folded(text, 2, 6)
        stdout.out("\n".join(lines))


Corpus = Annotated[
    list[str] | None,
    typer.Option(help="Text files: one document per line (.txt), or a column of .jsonl, .csv, .parquet, …; also .gz."),
]
MoreFiles = Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="More files of the corpus.")]
Column = Annotated[str | None, typer.Option(help="Column with the text, in all files but .txt; by default text.")]
ROWS = (
    "Source of the rows of --task: hub (the default), sample (the bundled rows, which `specbench run` measures), a "
    "folder or a file; not needed for world:NAME."
)


CORPUS_KINDS = {
    "ngram": "Count the n-grams of texts in the target's tokens, for drafts by the method ngram.",
    "retrieval": "Sort the tokens of texts into a datastore, for drafts by the method rest.",
}
KINDS = {
    "scdf": "Fine-tune a drafter on the target's continuations, mostly in the languages that it drafts worst.",
    "distill": "Distil the target's most probable tokens into a drafter, on answers to a task or on raw text.",
    "finetune": "Pretrain a drafter on texts, or fine-tune it on text that the target generates.",
    "medusa": "Train Medusa heads on text that the target generates.",
    "eagle": "Train an EAGLE-1 head, which EAGLE-2 also uses, on text that the target generates.",
    "eagle3": "Train an EAGLE-3 head on text that the target generates.",
    "peagle": "Train a P-EAGLE head, an EAGLE-3 head of one pass, on text that the target generates.",
    "mtp": "Train a layer for multi-token prediction (FastMTP) on text that the target generates.",
    "dflash": "Train a DFlash head, which drafts a block in one pass, on text that the target generates.",
    "dspark": "Train a DSpark head (a block with a Markov and a confidence head) on text that the target generates.",
    "domino": "Train a Domino head (a block that a GRU corrects) on text that the target generates.",
}
FOLDERS = {
    "ngram": "Folder of the n-gram model; an existing n-gram model is replaced.",
    "retrieval": "Folder of the datastore; an existing datastore is replaced.",
    **dict.fromkeys(KINDS, "Folder of the trained drafter; an unfinished training is resumed."),
}
METHODS = {"ngram": "ngram", "retrieval": "rest"}  # the methods that use the models made from a corpus
NUM_STEPS = {
    "scdf": "250 with 4 passes each (the paper's 1,000 draws, as we read it)",
    "distill": "800 (as in the paper)",
    **{kind: f"the number that {kind}.epochs needs" for kind in ("finetune", *HEADS)},
}
NOT_FOR_A_CORPUS = (
    "drafter", "drafter_revision", "threads", "num_steps", "learning_rate", "own_dtype", "own_device", "init_layers",
)  # fmt: skip


def trainer(kind: str) -> Callable[..., None]:
    """Returns the command of one kind. --set sets the keys that have no option."""
    if kind in KINDS:
        without: tuple[str, ...] = ("corpus", "more", "column", "order", *(("init_layers",) if kind in HEADS else ()))
    else:
        has_order = "order" in CORPUS_MODELS[kind].model_fields
        without = NOT_FOR_A_CORPUS if has_order else (*NOT_FOR_A_CORPUS, "order")

    @takes_run_options(only=(*PAIR, *DATA, "threads", "trust_remote_code"), without=without, data=ROWS)
    def command(
        corpus: Corpus = None,
        more: MoreFiles = None,
        config: Config = None,
        task: Task = None,
        *,
        options: RunOptions,
        text: Texts = None,
        column: Column = None,
        order: Annotated[int | None, typer.Option(help="Longest n-gram, in tokens; by default 2 (bigrams).")] = None,
        output: Annotated[Path | None, path_option(help=FOLDERS[kind])] = None,
        init_layers: Annotated[
            str | None,
            typer.Option(help="Start from this many layers of the target (or of --drafter), or from these: 0,1,29."),
        ] = None,
        num_steps: Annotated[
            int | None, typer.Option(help=f"Updates of the weights; by default {NUM_STEPS.get(kind)}.")
        ] = None,
        learning_rate: Annotated[
            str | None, typer.Option(help="One or more, comma-separated; the validation loss selects one.")
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Seed of every random stream.")] = None,
        own_dtype: Annotated[
            str | None,
            typer.Option(
                "--dtype",
                help="auto, float32 or bfloat16 (mixed precision); the drafter is saved in its original dtype.",
                autocompletion=one_of(get_args(TrainSpec.model_fields["dtype"].annotation)),
            ),
        ] = None,
        own_device: Annotated[str | None, typer.Option("--device", help="auto, cuda, mps or cpu.")] = None,
        set_: Annotated[list[str] | None, typer.Option("--set", help=f"Any key: {EXAMPLES[kind]}")] = None,
    ) -> None:
        from specbench.running.request import check_all, option_checks
        from specbench.specs import yaml_files
        from specbench.training.spec import read_settings

        layers = None if init_layers is None else yaml_files.parse(f"[{init_layers}]", f"--init-layers {init_layers}")
        place = f"--learning-rate {learning_rate}"
        rates = None if learning_rate is None else yaml_files.parse(f"[{learning_rate}]", place)
        values = {
            **{name: getattr(options, name) for name in PAIR}, "data.tasks": task and split(task),
            "data.subsets": options.subsets, "data.limit": options.limit, "data.source": options.data,
            "data.text": files_by_language(text), "data.corpus": [*(corpus or []), *(more or [])] or None,
            "data.column": column, "order": order, "output": output and str(output), "num_steps": num_steps,
            "init_layers": layers[0] if isinstance(layers, list) and len(layers) == 1 else layers,
            "learning_rate": rates, "seed": seed, "dtype": own_dtype, "device": own_device,
            "trust_remote_code": options.trust_remote_code or None,
        }  # fmt: skip
        model: type[TrainSpec | CorpusModelSpec] = TrainSpec if kind in KINDS else CORPUS_MODELS[kind]
        read = partial(read_settings, model, kind, config, values, set_ or [])
        needs_weights = kind in KINDS
        check_all([
            partial(require, "accelerate", f"specbench train {kind}"), read,
            *option_checks(options, needs_weights=needs_weights),
        ])  # fmt: skip
        spec = read()
        drafter = spec.drafter if isinstance(spec, TrainSpec) else None
        used = replace(options, target=spec.target, drafter=drafter)  # --config may name others
        check_all(option_checks(used, needs_weights=needs_weights))
        folder = Path(spec.output)
        if isinstance(spec, TrainSpec):
            from specbench.training.train import measurement_command, run_training

            record = run_training(spec, options.threads, stderr, command_line())
            if record is None:  # this is not the main process, or the training was already finished
                return
            summary = record.summary()
            next_step = f"measure it: {measurement_command(spec)}"
        else:
            from specbench.training.corpus import build_from_corpus

            try:
                summary = build_from_corpus(spec, stderr, command_line()).summary()
            except KeyboardInterrupt:
                stderr.print("interrupted: nothing was saved, and the output folder is unchanged", soft_wrap=True)
                sys.exit(INTERRUPTED)
            next_step = f"draft with it: --method {METHODS[kind]} --set drafter.path={folder}"
        stdout.print(f"{folder}: {summary}", soft_wrap=True)
        stderr.print(next_step, soft_wrap=True)

    return command


def files_by_language(texts: list[str] | None) -> dict[str, str] | None:
    """Returns the files of --text by language. Raises ConfigError for a value without a language or file, and for a
    language that is given twice."""
    if texts is None:
        return None
    files: dict[str, str] = {}
    for text in texts:
        language, _, file = text.partition("=")
        if not language.strip() or not file.strip():
            raise ConfigError(f"--text '{text}': write it as LANGUAGE=FILE, such as --text en=english.txt")
        if language in files:
            raise ConfigError(
                f"--text {language}={file}: '{language}' already has the file {files[language]}: give one file per "
                "language, with the texts of both"
            )
        files[language] = file
    return files


for kind, summary in CORPUS_KINDS.items():
    train.command(kind, cls=WithKeys, help=summary)(trainer(kind))
for kind, summary in KINDS.items():
    train.command(kind, cls=WithKeys, help=f"{summary} The same command resumes a training.")(trainer(kind))
