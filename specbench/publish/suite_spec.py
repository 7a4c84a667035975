"""The content of a suite YAML: tasks × methods × pairs × temperatures × seeds, exclusions, and published tables whose
figures refer to measurements."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError, nearest
from specbench.results.metric_format import find_metric
from specbench.specs.components import Name, Spec, Temperature, Text, Version
from specbench.specs.run_options import spec_of

WITH_SPREAD = re.compile(r"(-?\d+(?:\.\d+)?)±(\d+(?:\.\d+)?)")
QUALITY = "quality"  # the metric of a row's main score, by another name
FAIRNESS = "fairness."  # prefix of the path of a number of `specbench fairness`


class Figure(Spec):
    """One published number in the unit of its column, with the ± printed after it. In YAML: a number, or a text such as
    1.19±0.06."""

    value: float
    spread: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if isinstance(data, str):
            found = WITH_SPREAD.fullmatch(data)
            if found is None:
                raise ValueError("write a number, 1.19±0.06, or null where the paper has none")
            return {"value": float(found[1]), "spread": float(found[2])}
        return {"value": data} if isinstance(data, int | float) and not isinstance(data, bool) else data


class FigureReference(Spec):
    """The measurement to which a figure refers. A key of the column wins over the row, the row over the group, the
    group over the table.

    `task`: its name in the suite. `load`: the load of servers, such as concurrency 4; if absent, one request at a time.
    `metric`: a metric of a row (`specbench list metrics`); `quality`, the row's main score; or `fairness.…`, the path
    of a number of `specbench fairness`. `scale`: figure ÷ metric (100: a percentage, 1000: milliseconds). `minus`,
    `change_from`: a method; the figure is the difference to it, or the change from it in percent.
    """

    pair: Name | None = None
    target: Text | None = None
    task: Name | None = None
    subset: Text | None = None
    method: Text | None = None
    load: Text | None = None
    metric: Text | None = None
    scale: float | None = None
    minus: Text | None = None
    change_from: Text | None = None

    def within(self, inner: "FigureReference") -> "FigureReference":
        """Returns this reference with the keys of an inner one, which wins."""
        keys = set(FigureReference.model_fields)
        return FigureReference(**self.model_dump(include=keys) | inner.model_dump(include=keys, exclude_none=True))


class FigureColumn(FigureReference):
    """A column of a published table. `heading`: the text above it and its neighbours."""

    label: Text
    heading: Text | None = None


class FigureRow(FigureReference):
    """A row of a published table with a figure for each column; null if the paper prints none, or an unreadable one."""

    label: Text
    figures: tuple[Figure | None, ...]


class FigureGroup(FigureReference):
    """Rows under one heading. `hardware`: given if it differs from the table's."""

    heading: Text | None = None
    hardware: Text | None = None
    rows: Annotated[tuple[FigureRow, ...], Field(min_length=1)]


class PublishedTable(FigureReference):
    """A published table. `number`: its number in the paper. `differs`: the differences to our measurements.
    `elsewhere`: the command that measures such figures if no run does."""

    number: Text
    title: Text
    hardware: Text
    differs: Annotated[tuple[Text, ...], Field(min_length=1)]
    elsewhere: Text | None = None
    columns: Annotated[tuple[FigureColumn, ...], Field(min_length=1)]
    groups: Annotated[tuple[FigureGroup, ...], Field(min_length=1)]

    @property
    def label(self) -> str:
        """The name in a text: "table 3", "§8.2"."""
        return self.number if self.number.startswith("§") else f"table {self.number}"

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        for group in self.groups:
            for row in group.rows:
                if len(row.figures) != len(self.columns):
                    raise ConfigError(
                        f"table {self.number}, row '{row.label}': figures has {len(row.figures)} entries, but the "
                        f"table has {len(self.columns)} columns: give one for each, null where the paper has none"
                    )
        return self

    def rows(self) -> Iterator[tuple[FigureGroup, FigureRow]]:
        """Returns every row with its group."""
        return ((group, row) for group in self.groups for row in group.rows)

    def reference(self, group: FigureGroup, row: FigureRow, column: FigureColumn) -> FigureReference:
        """Returns the measurement to which a figure refers."""
        return self.within(group).within(row).within(column)

    def references(self) -> list[FigureReference]:
        """Returns the measurements to which the figures of the table refer."""
        return [
            self.reference(group, row, column)
            for group, row in self.rows()
            for column, figure in zip(self.columns, row.figures, strict=True)
            if figure is not None
        ]


def check_metric(where: str, metric: str) -> None:
    """Raises ConfigError for an unknown metric."""
    if metric != QUALITY and not metric.startswith(FAIRNESS) and find_metric(metric) is None:
        raise ConfigError(f"{where}: unknown metric '{metric}': `specbench list metrics` shows them")


def once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns values of which none is given twice. Raises ValueError otherwise."""
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"'{value}' is given twice: give it once")
    return values


Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(once)]


class TaskEntry(Spec):
    """A task of a suite, written as its name or as a mapping.

    `name`: its name in the suite, needed if a task occurs twice. `methods`, `repeats`: replace those of the suite.
    `fairness`: whether the rows also get the numbers of `specbench fairness`.
    """

    task: Text
    name: Name | None = None
    methods: Texts | None = None
    subsets: Texts | None = None
    limit: Count | None = None
    repeats: Count | None = None
    set: tuple[Text, ...] = ()
    fairness: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        return {"task": data} if isinstance(data, str) else data

    @property
    def label(self) -> str:
        """The name in the suite, and of its folder."""
        return self.name or file_name(self.task)


PAIR_OPTIONS = (
    "target", "drafter", "target_revision", "drafter_revision", "dtype", "engine", "chat", "chat_template_args",
    "template_date", "system_instruction", "sampling", "prompt_checks",
)  # fmt: skip


class PairSpec(spec_of("PairOptions", PAIR_OPTIONS)):  # type: ignore[misc]  # its keys are those of RunOptions
    """A target and a drafter, without a target the embedded models; or a file of servers that serve a target, and whose
    names are the suite's methods.

    `target`: with `servers` only a note on the model that they serve. `tasks`: the tasks to measure; if absent, all.
    `methods`: replacements for methods of the suite; null removes a method. `subsets`: for each task, replaces the
    subsets of the task.
    """

    servers: Text | None = None
    limit: Count | None = None
    tasks: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    methods: dict[str, Text | None] = Field(default_factory=dict)
    subsets: dict[str, tuple[Text, ...]] = Field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """The run options that the pair gives."""
        return {name: getattr(self, name) for name in PAIR_OPTIONS}

    @property
    def is_embedded(self) -> bool:
        """Whether the target is the embedded one, whose numbers are shown next to the figures of every pair."""
        return self.servers is None and self.target in (None, f"{EMBEDDED}target")

    @model_validator(mode="after")
    def _check_served(self) -> Self:
        of_models = ("drafter", "target_revision", "drafter_revision", "dtype", "engine")
        for name in of_models if self.servers is not None else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigError(f"{name} = '{getattr(self, name)}': has no effect with servers: leave it out")
        return self


class Exclusion(Spec):
    """A part of the grid that is not measured: runs that match one of the values of every given key."""

    task: Text | tuple[Text, ...] | None = None
    method: Text | tuple[Text, ...] | None = None
    pair: Text | tuple[Text, ...] | None = None
    temperature: Temperature | tuple[Temperature, ...] | None = None
    seed: Seed | tuple[Seed, ...] | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.values():
            raise ConfigError(
                "exclude: an entry is empty, which excludes everything: name a task, method, pair, temperature or seed"
            )
        return self

    def values(self) -> dict[str, tuple[Any, ...]]:
        """Returns the values of every given key."""
        given = {key: value for key, value in self if value is not None}
        return {key: value if isinstance(value, tuple) else (value,) for key, value in given.items()}

    def excludes(self, **place: Any) -> bool:
        """Returns whether a place in the grid is excluded. A key that `place` lacks matches no value."""
        return all(key in place and place[key] in values for key, values in self.values().items())


class SuiteSpec(Spec):
    """A suite; with `published` it is a board.

    `temperatures`: replace the temperature of the tasks. `limit`: examples per subset; the command line wins over the
    pair, the pair over the task, the task over the suite. `columns`: the metrics in the table of its rows.
    """

    name: Name
    version: Version | None = None
    title: Text | None = None
    paper: Text | None = None
    pairs: Annotated[dict[Name, PairSpec], Field(min_length=1)]
    methods: Annotated[tuple[Text, ...], AfterValidator(once)] = ()
    tasks: Annotated[tuple[TaskEntry, ...], Field(min_length=1)]
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1), AfterValidator(once)] | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(once)] = (0,)
    limit: Count | None = None
    repeats: Count = 1
    set: tuple[Text, ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    columns: Texts = ("acceptance_rate", "mean_acceptance_length", "tokens_per_second", "speedup", "quality")
    published: tuple[PublishedTable, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _pairs_without_keys(cls, data: Any) -> Any:
        """Turns a pair without keys, such as `embedded:`, into the embedded models."""
        if not isinstance(data, Mapping) or not isinstance(data.get("pairs"), Mapping):
            return data
        return {**data, "pairs": {name: {} if pair is None else pair for name, pair in data["pairs"].items()}}

    @property
    def is_served(self) -> bool:
        """Whether servers run the methods, so that methods are named after servers."""
        return any(pair.servers is not None for pair in self.pairs.values())

    def methods_of(self, task: TaskEntry) -> tuple[str, ...]:
        """Returns the methods of a task before replacements and exclusions."""
        return task.methods or self.methods

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Returns the values of each axis by the keys of `exclude`; no temperatures if the suite has none."""
        return {
            "pair": tuple(self.pairs), "task": tuple(task.label for task in self.tasks),
            "temperature": self.temperatures or (), "seed": self.seeds,
            "method": tuple(dict.fromkeys(file_name(name) for task in self.tasks for name in self.methods_of(task))),
        }  # fmt: skip

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        axes = self.axes()
        tasks, methods = axes["task"], {"ar", *axes["method"]}
        # 1. Tasks: each has a name of its own and methods, and one temperature.
        for number, task in enumerate(self.tasks):
            if task.label in tasks[:number]:
                raise ConfigError(f"tasks: '{task.label}' is given twice: give one of them a `name`")
            if not self.methods_of(task):
                raise ConfigError(
                    f"tasks.{number}: '{task.label}' has no methods: give `methods` to it or to the suite"
                )
            keys = {text.partition("=")[0].strip() for text in (*self.set, *task.set)}
            if self.temperatures is not None and "generation.temperature" in keys:
                raise ConfigError("set: generation.temperature contradicts `temperatures`: delete one of the two")
        # 2. Pairs: all have servers or none has, and they name tasks and methods of the suite.
        served = [name for name, pair in self.pairs.items() if pair.servers is not None]
        if 0 < len(served) < len(self.pairs):
            raise ConfigError(
                f"pairs.{served[0]}: has servers, but other pairs have none: such rows share no leaderboard: write two "
                "suites"
            )
        if served and (names := [task.label for task in self.tasks if task.fairness]):
            raise ConfigError(f"tasks: '{names[0]}' has fairness, which needs models in this process: leave it out")
        for name, pair in self.pairs.items():
            for key, kind, named, known in (
                ("methods", "method", pair.methods, methods), ("subsets", "task", pair.subsets, tasks),
                ("tasks", "task", pair.tasks or (), tasks),
            ):  # fmt: skip
                for value in named:
                    check_known(f"pairs.{name}.{key}", kind, value, known)
        # 3. Exclusions and columns name values of the suite and metrics.
        for number, exclusion in enumerate(self.exclude):
            for axis, excluded in exclusion.values().items():
                for value in excluded:
                    check_known(f"exclude.{number}", axis, value, axes[axis])
        for metric in self.columns:
            check_metric("columns", metric)
        # 4. Published figures name pairs, tasks and methods of the suite.
        if self.published and len(self.temperatures or ()) + len(self.seeds) > 1:
            raise ConfigError(
                "published: a figure belongs to one temperature and one seed: instead of `temperatures` and `seeds`, "
                "give separate tasks with `set`"
            )
        for place, table in enumerate(self.published):
            where = f"published: table {table.number}"
            if any(table.number == other.number for other in self.published[:place]):
                raise ConfigError(f"published: table '{table.number}' is given twice: delete or rename one")
            for figure in table.references():
                check_known(where, "pair", figure.pair, self.pairs)
                check_known(where, "task", figure.task, tasks)
                for key in ("method", "minus", "change_from"):
                    check_known(where, key, getattr(figure, key), methods)
                if figure.metric is not None:
                    check_metric(where, figure.metric)
        return self


def check_known(where: str, key: str, value: Any, choices: Iterable[Any]) -> None:
    """Raises ConfigError for a value that is not among the choices. None is always allowed."""
    if value is not None and value not in choices:
        hint = nearest(str(value), map(str, choices))
        raise ConfigError(f"{where}: {key} = '{value}': the suite has no such {key}: {hint}")


def file_name(name_or_path: str) -> str:
    """Returns the name of a task or method in a suite: its name, or the name of its file."""
    name = Path(name_or_path).stem if name_or_path.endswith((".yaml", ".yml")) else name_or_path
    return name.replace(":", "-").replace("/", "-")
