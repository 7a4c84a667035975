"""The prompts and texts of a training by language, their digest, and which of them `specbench run` measures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, inf
from pathlib import Path
from random import Random

from rich.console import Console

from specbench.core.console import counted, say
from specbench.core.errors import ConfigError, nearest
from specbench.core.values import bytes_digest
from specbench.decoding.decoder import stream_seed
from specbench.embedded import MAX_WORLD_ROWS, world_names, world_rows
from specbench.specs.catalogue import builtin_task_names, load_task
from specbench.specs.components import build
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import load_examples
from specbench.tasks.local_files import read_rows
from specbench.training.spec import DataSpec, TrainSpec, check_warmup


def texts_of(files: Sequence[str], column: str) -> Iterator[str]:
    """Yields the texts of files in order, read row by row: the lines of a .txt file, or a column of any other. Raises
    ConfigError that names the file and the row."""
    for file in files:
        path = Path(file)
        if not path.is_file():
            raise ConfigError(f"{path}: {'is a folder: give files' if path.is_dir() else 'no such file'}")
        key = "text" if path.name.removesuffix(".gz").endswith(".txt") else column
        for number, row in enumerate(read_rows(path, max_lines=inf), start=1):
            text = row.get(key)
            if not isinstance(text, str):
                hint = next(iter(row)) if len(row) == 1 else "NAME"
                problem = f"has no column '{key}' (columns: {', '.join(row)}): give --set data.column={hint}"
                if key in row:
                    problem = f"column '{key}' must be a text, not {text!r:.40}: correct it"
                raise ConfigError(f"{path}, row {number}: {problem}")
            yield text


def with_split(task: TaskSpec, spec: DataSpec) -> TaskSpec:
    """Returns the task with its rows from the requested split. Raises ConfigError if a run measures that split."""
    if spec.split is None:
        return task
    if spec.source == "sample":
        raise ConfigError(f"data.split = '{spec.split}': the bundled samples have one split: delete the key")
    data = task.model_dump()
    parts = [part for part in (data, *data["subsets"].values()) if part.get("dataset")]
    if any(part["dataset"].get("split") == spec.split for part in parts):
        raise ConfigError(f"data.split = '{spec.split}': is the split that task '{task.name}' measures: delete the key")
    for part in parts:
        part["dataset"]["split"] = spec.split
    return build(TaskSpec, data, prefix=f"data.split = '{spec.split}': task '{task.name}': ")


WORLD = "world:"
NUM_ROWS = 256  # of each subset, without a limit


def is_measured(name: str) -> bool:
    """Returns whether a kind of rows of the embedded world has a task. Drills are only for training."""
    return name in builtin_task_names()


@dataclass(frozen=True)
class TrainingPrompt:
    """A prompt, and the answer in the data if there is one."""

    language: str
    text: str
    reference: str | None = None

    @property
    def whole(self) -> str:
        """Returns prompt and answer as one text, with a space between them unless there is one."""
        if self.reference is None:
            return self.text
        blank = "" if self.text[-1:].isspace() or self.reference[:1].isspace() else " "
        return self.text + blank + self.reference

    @property
    def identity(self) -> bytes:
        return f"{asdict(self)}\n".encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class TrainingData:
    """Prompts by language, in order. `sources`: their origins. `overlap`: the origins whose rows are measured."""

    prompts: Mapping[str, tuple[TrainingPrompt, ...]]
    sources: tuple[str, ...] = ()
    overlap: tuple[str, ...] = field(default=())

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self.prompts)

    @property
    def num_prompts(self) -> int:
        return sum(map(len, self.prompts.values()))

    def texts(self, language: str) -> tuple[str, ...]:
        return tuple(prompt.whole for prompt in self.prompts[language])

    @property
    def digest(self) -> str:
        """Returns 12 hex digits of SHA-256 over languages, prompts and answers, in order."""
        return bytes_digest(prompt.identity for prompts in self.prompts.values() for prompt in prompts)


def load_data(spec: TrainSpec) -> TrainingData:
    """Returns the data of a training. Raises ConfigError also for s-CDF with a single language, or with a language that
    has no data."""
    data = gather_data(spec.data, spec.seed)
    if spec.scdf is None:
        return data
    for name in spec.scdf.proportions:
        if name not in data.languages:
            hint = nearest(name, data.languages)
            raise ConfigError(f"scdf.proportions.{name}: the data has no language '{name}': {hint}")
    if spec.scdf.weighting == "corrective" and len(data.languages) < 2:
        raise ConfigError(
            f"data: has one language, '{data.languages[0]}', and s-CDF gives the best language of a pass no weight: "
            "name two or more"
        )
    return data


def gather_data(spec: DataSpec, seed: int) -> TrainingData:
    """Returns all data, merged by language. Raises ConfigError for missing, empty or unknown data."""
    prompts: dict[str, tuple[TrainingPrompt, ...]] = {}
    sources: list[str] = []
    overlap: list[str] = []

    def add(language: str, place: str, pairs: Iterable[tuple[str, str | None]], is_measured: bool = False) -> None:
        new = [TrainingPrompt(language, *pair) for pair in pairs]
        prompts[language] = (*prompts.get(language, ()), *new)
        sources.append(f"{language}: {len(new)} from {place}")
        if is_measured:  # `specbench run` measures the same rows
            overlap.append(f"{language}: {counted(len(new), 'row')} of {place}")

    # 1. All that is named must exist.
    tasks = [with_split(load_task(name), spec) for name in spec.tasks if not name.startswith(WORLD)]
    worlds = [name.removeprefix(WORLD) for name in spec.tasks if name.startswith(WORLD)]
    for name in worlds:
        if name not in world_names():
            choices = [f"{WORLD}{each}" for each in world_names()]
            raise ConfigError(f"data.tasks: '{WORLD}{name}' does not exist: {nearest(f'{WORLD}{name}', choices)}")
    of_worlds = [subset for name in worlds for subset in world_rows(name)]
    known = [*(subset for task in tasks for subset in task.subset_names), *of_worlds]
    for name in spec.subsets or ():
        if name not in known:
            raise ConfigError(f"data.subsets: {', '.join(spec.tasks)} has no language '{name}': {nearest(name, known)}")
    if worlds and not tasks and (spec.source or spec.split):
        key = "source" if spec.source else "split"
        raise ConfigError(f"data.{key}: has no effect on rows of the embedded world: delete the key")

    # 2. The rows of tasks.
    for task in tasks:
        if spec.subsets is not None and task.subsets:
            subsets = [subset for subset in task.subset_names if subset in spec.subsets]
        else:  # not every subset has bundled rows
            has_rows = spec.source != "sample"
            subsets = [subset for subset in task.subset_names if has_rows or task.sample_of(subset) is not None]
        for subset in subsets:
            data = load_examples(
                task, subset, data=spec.source, use_sample=False, limit=spec.limit, num_subsets=len(subsets)
            )
            if spec.split is not None and data.source == "local" and spec.split not in data.location:
                raise ConfigError(
                    f"data.split = '{spec.split}': task '{task.name}' reads {data.location}, which is not named after "
                    "the split: give --data a file or folder that is"
                )
            pairs: list[tuple[str, str | None]] = []
            for example in data.examples:
                answer = example.reference[0] if isinstance(example.reference, list) else example.reference
                pairs.append((example.prompt, answer if isinstance(answer, str) else None))
            language = subset if task.subsets else task.language or task.name
            add(language, f"{task.name} ({data.location})", pairs, is_measured=spec.split is None)

    # 3. The rows of the embedded world; of a conversation, the first turn.
    for name in worlds:
        if spec.limit is not None and spec.limit > MAX_WORLD_ROWS:
            raise ConfigError(
                f"data.limit = {spec.limit}: {WORLD}{name} has at most {MAX_WORLD_ROWS} rows of each subset: give fewer"
            )
        for subset, rows in world_rows(name).items():
            if spec.subsets is None or subset in spec.subsets:
                if seed:  # seed 0 takes the first ones, another seed draws from all
                    rows = Random(stream_seed(seed, "world", name, subset)).sample(rows, len(rows))
                add(subset, f"{WORLD}{name}", rows[: spec.limit or NUM_ROWS])

    # 4. The texts of files.
    for language, file in spec.text.items():
        try:
            texts = [text for text in texts_of([file], spec.column) if text.strip()]
        except ConfigError as error:
            raise ConfigError(f"data.text.{language}: {error}") from error
        if not texts:
            raise ConfigError(f"data.text.{language}: '{file}': the corpus is empty: give a file with text")
        add(language, file, [(text, None) for text in texts[: spec.limit]])
    return TrainingData(prompts, tuple(sources), tuple(overlap))


def warn_of_overlap(data: TrainingData, console: Console) -> None:
    if data.overlap:
        first, more = data.overlap[0], len(data.overlap) - 1
        say(
            console,
            f"warning: `specbench run` measures the training rows ({first}{f' and {more} more' * bool(more)}): give "
            "--data with other files and --set data.split=train, or --task world:NAME for the embedded models",
        )


def total_steps(spec: TrainSpec, num_items: int) -> int:
    """Returns the number of updates: the requested one, or that of the epochs over `num_items` sequences. The last
    batch of an epoch may be smaller, and the last update may begin another epoch.

    Raises ConfigError if the warm-up is longer.
    """
    if spec.num_steps is not None:
        return spec.num_steps
    assert spec.epochs is not None
    num_passes = spec.epochs * ceil(num_items / spec.batch_size)
    num_steps = ceil(num_passes / spec.gradient_accumulation)
    check_warmup(spec.warmup, num_steps)
    return num_steps
