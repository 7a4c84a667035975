"""Published figures beside ours: of every board whose rows are there."""

from collections.abc import Iterator
from dataclasses import dataclass

from specbench.core.errors import ConfigError
from specbench.publish.boards.catalogue import read_board
from specbench.publish.boards.comparison import compared
from specbench.publish.boards.measured import Measured, cell_of_row
from specbench.publish.boards.spec import FigureTable
from specbench.publish.site.entries import Entries
from specbench.results.row import Row
from specbench.results.units import NULL


@dataclass(frozen=True)
class Line:
    """One figure; `ratio`: ours ÷ published."""

    heading: str
    row: str
    column: str
    published: str
    ours: str
    ratio: str


@dataclass(frozen=True)
class Table:
    """A published table with the figures that we have a number for."""

    title: str
    about: str
    hardware: str
    differs: tuple[str, ...]
    lines: tuple[Line, ...]


def published(entries: Entries) -> list[Table]:
    """Tables of boards, pair by pair, that rows were measured for; without those that nothing was measured of."""
    cells: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for entry in entries.all:
        cell = _cell(entry.row)
        if cell is not None:
            board, pair, run = cell
            cells.setdefault((board, pair), {}).setdefault(run, []).append(entry.row)
    return [table for (board, pair), rows in sorted(cells.items()) for table in _tables(board, pair, rows)]


def _cell(row: Row) -> tuple[str, ...] | None:
    """None too where the command is no command line."""
    try:
        return cell_of_row(row)
    except ValueError:
        return None


def _tables(name: str, pair: str, rows: dict[str, list[Row]]) -> Iterator[Table]:
    try:
        board = read_board(name)
    except ConfigError:  # a board of somebody else, or of another version
        return
    if pair not in board.pairs:
        return
    measured = Measured(board, pair, rows)
    for table in board.published:
        lines = tuple(_lines(table, measured))
        if lines:
            number = table.reference
            yield Table(f"{name}, {number}: {pair}", table.title, table.hardware, table.differs, lines)


def _lines(table: FigureTable, measured: Measured) -> Iterator[Line]:
    for group in table.groups:
        for row in group.rows:
            for column, found in compared(table, group, row, measured):
                if found is None or found.ours is None:
                    continue
                figure = found.published
                spread = "" if figure.spread is None else f" ± {figure.spread:g}"
                label = " ".join(filter(None, (column.heading, column.label)))
                ratio = NULL if found.ratio is None else f"{found.ratio:.2f}"
                yield Line(
                    group.heading or "", row.label, label, f"{figure.value:g}{spread}", f"{found.ours:.4g}", ratio
                )
