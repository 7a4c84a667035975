"""Published figures: tables of a paper as they are printed, and where each figure has its place among our numbers."""

import re
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from specbench.errors import ConfigError
from specbench.specs.components import Name, Spec, Text

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
