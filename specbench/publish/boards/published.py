"""The published tables of a board with ours beside them."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from specbench.publish.boards.comparison import Compared, compared
from specbench.publish.boards.measured import Measured
from specbench.publish.boards.spec import Figure, FigureColumn, FigureTable
from specbench.publish.boards.tables import NOT_MEASURED, add, plain_table
from specbench.results.units import NULL

MAX_COLUMNS = 3  # of figures in one table: each takes three columns of 100 characters


def published_tables(measured: Measured) -> Iterator[Table | Text]:
    """Every published table, split into parts of at most three figures a row, and behind it what is to be known of it;
    what differs is said once where several tables share it."""
    said: tuple[str, ...] = ()
    for published in measured.board.published:
        for columns in _parts(published.columns):
            yield _published(published, columns, measured)
        yield Text("\n".join([*_notes(published, published.differs == said), ""]))
        said = published.differs


def _published(published: FigureTable, columns: Sequence[FigureColumn], measured: Measured) -> Table:
    number = published.reference
    beside = "" if published.elsewhere else f" beside {measured.pair_name} (ours)"
    title = f"{measured.board.name} · {number} (published){beside}"
    heading = f"\n{columns[0].heading}" if columns[0].heading else ""
    table = plain_table(f"{title}\n{published.title}{heading}", "")
    for column in columns:
        table.add_column(f"{column.label}\npaper", justify="right", overflow="fold")
        if not published.elsewhere:
            table.add_column("ours", justify="right", no_wrap=True)
            table.add_column("ratio", justify="right", no_wrap=True)
    digits = _digits(published)
    for group in published.groups:
        if group.heading:
            hardware = f" ({group.hardware})" if group.hardware else ""
            table.add_row(Text(group.heading + hardware, style="bold"))
        for row in group.rows:
            found = [pair for pair in compared(published, group, row, measured) if pair[0] in columns]
            if all(each is None for _, each in found):
                continue
            places = [digits[id(column)] for column, _ in found]
            cells = _cells([each for _, each in found], places)
            add(table, row.label, *(cells[::3] if published.elsewhere else cells))
        table.add_section()
    return table


def _cells(found: Sequence[Compared | None], digits: Sequence[int]) -> list[str]:
    """Published, ours and ratio of each; where nothing of a row is measured, it is said once."""
    cells, absent = [], NULL if any(each is not None and each.ours is not None for each in found) else NOT_MEASURED
    for each, places in zip(found, digits, strict=True):
        if each is None:
            cells += [NULL, "", ""]
        elif each.ours is None:
            cells += [_printed(each.published, places), absent, ""]
            absent = NULL
        else:
            ratio = NULL if each.ratio is None else f"{each.ratio:.2f}"
            cells += [_printed(each.published, places), f"{each.ours:.{places}f}", ratio]
    return cells


def _parts(columns: Sequence[FigureColumn]) -> Iterator[Sequence[FigureColumn]]:
    """Columns under one heading stay together, in parts of about the same length."""
    for _, found in groupby(columns, key=lambda column: column.heading):
        own = list(found)
        length = math.ceil(len(own) / math.ceil(len(own) / MAX_COLUMNS))
        for start in range(0, len(own), length):
            yield own[start : start + length]


def _digits(published: FigureTable) -> dict[int, int]:
    """By the column's id: the most decimals that the paper prints in it."""
    rows = [row for group in published.groups for row in group.rows]
    return {
        id(column): max((_decimals(figure) for row in rows if (figure := row.figures[number])), default=0)
        for number, column in enumerate(published.columns)
    }


def _decimals(figure: Figure) -> int:
    return max(
        0 if number.is_integer() and number == figure.value else len(repr(number).partition(".")[2])
        for number in (figure.value, figure.spread or figure.value)
    )


def _printed(figure: Figure, digits: int) -> str:
    spread = "" if figure.spread is None else f"±{figure.spread:.{digits}f}"
    return f"{figure.value:.{digits}f}{spread}"


def _notes(published: FigureTable, is_said: bool) -> list[str]:
    ratio = "" if published.elsewhere else "; ratio: ours ÷ published"
    notes = [f"published on: {published.hardware}{ratio}"]
    notes += ["what differs: as above"] if is_said else ["what differs:", *(f"- {each}" for each in published.differs)]
    return notes + ([f"ours: not measured here, but by {published.elsewhere}"] if published.elsewhere else [])
