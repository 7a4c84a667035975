"""Published figures and ours: one line for each, as data."""

from collections.abc import Iterator
from dataclasses import dataclass

from specbench.publish.boards.measured import Measured
from specbench.publish.boards.spec import Figure, FigureColumn, FigureGroup, FigureRow, FigureTable


@dataclass(frozen=True)
class Compared:
    """A published figure with our number of the same place, in the same unit; None where nothing is measured."""

    published: Figure
    ours: float | None

    @property
    def ratio(self) -> float | None:
        """Ours ÷ published; None where nothing is measured, and of changes that do not have the same sign."""
        published = self.published.value
        if self.ours is None or published == 0 or self.ours * published < 0:
            return None
        return self.ours / published


def compared(
    table: FigureTable, group: FigureGroup, row: FigureRow, measured: Measured
) -> list[tuple[FigureColumn, Compared | None]]:
    """The figures of a row, by column; None where the paper has none."""
    return [
        (column, None if figure is None else Compared(figure, measured.ours(table.place(group, row, column))))
        for column, figure in zip(table.columns, row.figures, strict=True)
    ]


def as_records(measured: Measured) -> Iterator[dict[str, object]]:
    """Every published figure of the board beside ours, for a program to read."""
    for table in measured.board.published:
        for group in table.groups:
            for row in group.rows:
                for column, found in compared(table, group, row, measured):
                    if found is None:
                        continue
                    place = table.place(group, row, column)
                    yield {
                        "board": measured.board.name, "table": table.number, "heading": group.heading,
                        "hardware": group.hardware or table.hardware, "row": row.label,
                        "column": " ".join(filter(None, (column.heading, column.label))),
                        "place": place.model_dump(exclude_none=True),
                        "published": found.published.value, "published_spread": found.published.spread,
                        "pair": measured.pair_name, "ours": found.ours, "ratio": found.ratio,
                    }  # fmt: skip
