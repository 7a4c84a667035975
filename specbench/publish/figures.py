"""Published tables as a suite YAML holds them, with the measurement that each figure is of."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from specbench.core.errors import ConfigError
from specbench.results.glossary import meaning
from specbench.specs.components import Name, Spec, Text

WITH_SPREAD = re.compile(r"(-?\d+(?:\.\d+)?)±(\d+(?:\.\d+)?)")
QUALITY = "quality"  # stands for the main score of a row, whichever metric that is
FAIRNESS = "fairness."  # begins the path of a number of `specbench fairness`


class Figure(Spec):
    """One published number, in the unit of its column, and the ± printed behind it. In YAML: a number, or a text like
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
    """The measurement that a figure is of. A key of the column wins over the row, the row over the group, the group
    over the table.

    `task`: its name in the suite. `metric`: of a row of results (`specbench list metrics`); `quality`, the row's main
    score; or `fairness.…`, the path of a number of `specbench fairness`. `scale`: the figure is so many times the
    metric (100: a percentage, 1000: milliseconds). `minus`, `change_from`: a method; the figure is the difference to
    it, or the change from it in percent.
    """

    pair: Name | None = None
    target: Text | None = None
    task: Name | None = None
    subset: Text | None = None
    method: Text | None = None
    metric: Text | None = None
    scale: float | None = None
    minus: Text | None = None
    change_from: Text | None = None

    def within(self, inner: "FigureReference") -> "FigureReference":
        """Returns this reference, completed and overridden by an inner one."""
        keys = set(FigureReference.model_fields)
        return FigureReference(**self.model_dump(include=keys) | inner.model_dump(include=keys, exclude_none=True))


class FigureColumn(FigureReference):
    """A column of a published table. `heading`: the text over it and its neighbours."""

    label: Text
    heading: Text | None = None


class FigureRow(FigureReference):
    """A row of a published table with a figure for each column; null where the paper prints none, or none that can be
    read."""

    label: Text
    figures: tuple[Figure | None, ...]


class FigureGroup(FigureReference):
    """Rows under one heading. `hardware`: where it differs from the table's."""

    heading: Text | None = None
    hardware: Text | None = None
    rows: Annotated[tuple[FigureRow, ...], Field(min_length=1)]


class PublishedTable(FigureReference):
    """A published table: its number in the paper, the hardware, and what differs from our measurements.

    `elsewhere`: the command that measures such figures, where no run does.
    """

    number: Text
    title: Text
    hardware: Text
    differs: Annotated[tuple[Text, ...], Field(min_length=1)]
    elsewhere: Text | None = None
    columns: Annotated[tuple[FigureColumn, ...], Field(min_length=1)]
    groups: Annotated[tuple[FigureGroup, ...], Field(min_length=1)]

    @property
    def label(self) -> str:
        """Returns its name in a text: "table 3", "§8.2"."""
        return self.number if self.number.startswith("§") else f"table {self.number}"

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        for group in self.groups:
            for row in group.rows:
                if len(row.figures) != len(self.columns):
                    raise ConfigError(
                        f"table {self.number}, row '{row.label}': figures = {len(row.figures)} of them, but the table "
                        f"has {len(self.columns)} columns: give one for each, null where the paper has none"
                    )
        return self

    def rows(self) -> Iterator[tuple[FigureGroup, FigureRow]]:
        """Returns every row with its group."""
        return ((group, row) for group in self.groups for row in group.rows)

    def reference(self, group: FigureGroup, row: FigureRow, column: FigureColumn) -> FigureReference:
        """Returns the measurement that a figure is of."""
        return self.within(group).within(row).within(column)

    def references(self) -> list[FigureReference]:
        """Returns the measurements that the figures of the table are of."""
        return [
            self.reference(group, row, column)
            for group, row in self.rows()
            for column, figure in zip(self.columns, row.figures, strict=True)
            if figure is not None
        ]


def check_metric(where: str, metric: str) -> None:
    """Raises ConfigError for a metric that is unknown."""
    if metric != QUALITY and not metric.startswith(FAIRNESS) and meaning(metric) is None:
        raise ConfigError(f"{where}: unknown metric '{metric}': `specbench list metrics` shows them")
