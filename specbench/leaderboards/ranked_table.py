"""A ranked table as data, whichever format it is printed in."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Column:
    """`folds`: whether its texts may take several lines."""

    heading: str
    is_number: bool = False
    folds: bool = False


@dataclass(frozen=True)
class RankedTable:
    """What is printed, in whichever format. `best`: row and column of the value that is separable from all others."""

    title: str
    columns: tuple[Column, ...]
    cells: tuple[tuple[str, ...], ...]
    caption: tuple[str, ...]
    best: tuple[int, int] | None


def without_numbers(table: RankedTable) -> RankedTable:
    """Without the column of the rows' numbers, by which only commands name them."""
    best = None if table.best is None else (table.best[0], table.best[1] - 1)
    columns, cells = (table.columns[0], *table.columns[2:]), tuple((each[0], *each[2:]) for each in table.cells)
    return replace(table, columns=columns, cells=cells, best=best)
