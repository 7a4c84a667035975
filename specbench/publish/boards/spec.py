"""What a board YAML says: pairs of models, runs of tasks and methods on them, conditions, published figures."""

import re
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from specbench.core.errors import ConfigError, nearest
from specbench.core.resources import EMBEDDED
from specbench.results.glossary import meaning
from specbench.specs.components import Name, Spec, Text, Version

WITH_SPREAD = re.compile(r"(-?\d+(?:\.\d+)?)±(\d+(?:\.\d+)?)")


class Figure(Spec):
    """One published number, in the unit of its column, and the ± that is printed behind it. In YAML: a number, or a
    text like 1.19±0.06."""

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


class Place(Spec):
    """What a figure is of. Of the keys given for the table, the group, the row and the column the innermost counts.

    `metric`: of a row of results (`specbench list metrics`); `quality`, the row's main score; or `fairness.…`, the path
    of a number of `specbench fairness`. `scale`: the figure is so many times the metric (100: a percentage, 1000:
    milliseconds). `minus`, `change_from`: a method; the figure is the difference to it, or the change from it in
    percent.
    """

    pair: Name | None = None
    target: Text | None = None
    run: Name | None = None
    subset: Text | None = None
    method: Text | None = None
    metric: Text | None = None
    scale: float | None = None
    minus: Text | None = None
    change_from: Text | None = None

    def within(self, inner: "Place") -> "Place":
        """This place, completed and overridden by an inner one."""
        given = {name: getattr(inner, name) for name in Place.model_fields if getattr(inner, name) is not None}
        own = {name: getattr(self, name) for name in Place.model_fields}
        return Place(**{**own, **given})


class FigureColumn(Place):
    """A column of a published table. `heading`: what stands over it and its neighbours."""

    label: Text
    heading: Text | None = None


class FigureRow(Place):
    """A row of a published table, a figure for each column; null where the paper prints none, or none that can be
    read."""

    label: Text
    figures: tuple[Figure | None, ...]


class FigureGroup(Place):
    """Rows under one heading. `hardware`: where it is another than the table's."""

    heading: Text | None = None
    hardware: Text | None = None
    rows: Annotated[tuple[FigureRow, ...], Field(min_length=1)]


class FigureTable(Place):
    """A published table: its number in the paper, the hardware, what differs from our measurements.

    `elsewhere`: where nothing that `board run` does measures such figures, the command that does.
    """

    number: Text
    title: Text
    hardware: Text
    differs: Annotated[tuple[Text, ...], Field(min_length=1)]
    elsewhere: Text | None = None
    columns: Annotated[tuple[FigureColumn, ...], Field(min_length=1)]
    groups: Annotated[tuple[FigureGroup, ...], Field(min_length=1)]

    @property
    def reference(self) -> str:
        """As a text names it: "table 3", "§8.2"."""
        return self.number if self.number.startswith("§") else f"table {self.number}"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for group in self.groups:
            for row in group.rows:
                if len(row.figures) != len(self.columns):
                    raise ConfigError(
                        f"table {self.number}, row '{row.label}': figures = {len(row.figures)} of them, but the table "
                        f"has {len(self.columns)} columns: give one for each, null where the paper has none"
                    )
        return self

    def place(self, group: FigureGroup, row: FigureRow, column: FigureColumn) -> Place:
        """What a figure is of."""
        return self.within(group).within(row).within(column)

    def places(self) -> list[Place]:
        """Of all figures of the table that are there."""
        return [
            self.place(group, row, column)
            for group in self.groups
            for row in group.rows
            for column, figure in zip(self.columns, row.figures, strict=True)
            if figure is not None
        ]


Count = Annotated[int, Field(ge=1)]
QUALITY = "quality"  # the metric that stands for the quality of a row, whichever it is
FAIRNESS = "fairness."  # what the path of a number of `specbench fairness` begins with


class PairSpec(Spec):
    """A target and a drafter. Without a target it is the embedded family, which stands in for every published pair.

    `runs`: those of the board that it takes part in, all when absent. `methods`: what it measures in place of a method
    of the board; null: nothing. `subsets`: by run, those that it measures.
    """

    target: Text | None = None
    drafter: Text | None = None
    target_revision: Text | None = None
    drafter_revision: Text | None = None
    limit: Count | None = None
    runs: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    methods: dict[str, Text | None] = Field(default_factory=dict)
    subsets: dict[str, tuple[Text, ...]] = Field(default_factory=dict)

    @property
    def stands_in(self) -> bool:
        """Whether its numbers are shown beside the figures of all published pairs."""
        return self.target is None or self.target == f"{EMBEDDED}target"


class BoardRun(Spec):
    """One task with methods that are measured together. `set`: overrides as `--set` takes them. `fairness`: whether
    the rows get the numbers of `specbench fairness` too."""

    task: Text
    methods: Annotated[tuple[Text, ...], Field(min_length=1)]
    subsets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    set: tuple[Text, ...] = ()
    limit: Count | None = None
    repeats: Count | None = None
    fairness: bool = False


class Conditions(Spec):
    """What holds for all runs. `limit`: examples per subset; the command line wins over the pair, the pair over the
    run, the run over this."""

    limit: Count | None = None
    repeats: Count = 1
    seed: Annotated[int, Field(ge=0)] = 0
    set: tuple[Text, ...] = ()
    dtype: Text = "auto"
    chat: Text = "auto"


class BoardSpec(Spec):
    """A board. `columns`: the metrics that its own table shows of every method."""

    name: Name
    version: Version
    title: Text
    paper: Text | None = None
    pairs: Annotated[dict[Name, PairSpec], Field(min_length=1)]
    conditions: Conditions = Conditions()
    runs: Annotated[dict[Name, BoardRun], Field(min_length=1)]
    columns: Annotated[tuple[Text, ...], Field(min_length=1)]
    published: tuple[FigureTable, ...] = ()

    @model_validator(mode="after")
    def _refers_to_what_is_there(self) -> Self:
        methods = {"ar", *(method for run in self.runs.values() for method in run.methods)}
        for name, pair in self.pairs.items():
            for method in pair.methods:
                _known(f"pairs.{name}.methods", "method", method, methods)
            for key, named in (("subsets", pair.subsets), ("runs", pair.runs or ())):
                for run in named:
                    _known(f"pairs.{name}.{key}", "run", run, self.runs)
        for metric in self.columns:
            if metric != QUALITY and meaning(metric) is None:
                raise ConfigError(f"columns: unknown metric '{metric}': `specbench list metrics` shows them")
        numbers = [table.number for table in self.published]
        twice = [number for number in numbers if numbers.count(number) > 1]
        if twice:
            raise ConfigError(f"published: table '{twice[0]}' is there twice: delete or rename one")
        for table in self.published:
            for place in table.places():
                self._check(f"published: table {table.number}", place, methods)
        return self

    def _check(self, where: str, place: Place, methods: Any) -> None:
        """Every place refers to what the board has; what it does not name is a figure that we have no number for."""
        _known(where, "pair", place.pair, self.pairs)
        _known(where, "run", place.run, self.runs)
        for key in ("method", "minus", "change_from"):
            _known(where, key, getattr(place, key), methods)
        plain = place.metric is not None and place.metric != QUALITY and not place.metric.startswith(FAIRNESS)
        if plain and meaning(str(place.metric)) is None:
            raise ConfigError(f"{where}: unknown metric '{place.metric}': `specbench list metrics` shows them")


def _known(where: str, key: str, name: str | None, choices: Any) -> None:
    if name is not None and name not in choices:
        raise ConfigError(f"{where}: {key} = '{name}': the board has no such {key}: {nearest(name, choices)}")
