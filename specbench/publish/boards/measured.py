"""Our own numbers of a board: the rows of its cells, and the one that a published figure stands beside."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from specbench.core.errors import ConfigError
from specbench.core.resources import EMBEDDED
from specbench.publish.boards.catalogue import board_path, load_board
from specbench.publish.boards.cells import Cell, cells_of
from specbench.publish.boards.spec import FAIRNESS, QUALITY, BoardSpec, Place
from specbench.publish.measurement import Asked, options_of
from specbench.results.bootstrap import Metric
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.results.units import short

ALL = "all"
OF_MACHINE = ("--output", "--device", "--threads", "--allow-code-execution")


def cell_of_row(row: Row) -> tuple[str, ...] | None:
    """The board, pair and run of a row that `board run` measured, from its command's folder; None for other rows."""
    words = shlex.split(row.command)
    if "--output" not in words[:-1]:
        return None
    parts = Path(words[words.index("--output") + 1]).parts
    return parts[-3:] if "boards" in parts[:-3] else None


@dataclass(frozen=True)
class Measured:
    """The rows of one pair of a board, by run; `outdated`: what of them is not what the board asks for now."""

    board: BoardSpec
    pair_name: str
    rows: dict[str, list[Row]]
    outdated: tuple[str, ...] = ()

    def ours(self, place: Place) -> float | None:
        """Our number of a figure's place, in the figure's unit; None where nothing is measured, or the figure is of
        another pair. The embedded family stands beside the figures of every pair."""
        pair = self.board.pairs[self.pair_name]
        if not pair.stands_in and not (
            place.pair == self.pair_name or (place.pair is None and place.target in (None, pair.target))
        ):
            return None
        value = self._value(place, place.method)
        other = place.minus or place.change_from
        if value is None or other is None:
            return None if value is None else value * (place.scale or 1)
        base = self._value(place, other)
        if base is None or (place.change_from and not base):
            return None
        return 100 * (value / base - 1) if place.change_from else (value - base) * (place.scale or 1)

    def _value(self, place: Place, method: str | None) -> float | None:
        row = self._row(place, method)
        return None if row is None or place.metric is None else value_of(row, place.metric)

    def _row(self, place: Place, method: str | None) -> Row | None:
        """The row of a method of the board on a subset; without a subset that over all, or the only one."""
        if place.run is None or method is None:
            return None
        found = [row for row in self.rows.get(place.run, []) if self.method_name(row) == method]
        subset = place.subset or (ALL if len(found) > 1 else None)
        return next((row for row in found if subset in (None, row.subset)), None)

    def method_name(self, row: Row) -> str:
        """What the board calls the method of a row."""
        name = row.method_name
        for asked, measured in self.board.pairs[self.pair_name].methods.items():
            if measured is not None and name in (measured, Path(measured).stem):
                return asked
        return name


def measured(board: BoardSpec, pair: str, folder: Path, committed: Path | None) -> Measured:
    """The rows of a pair: of each cell those of its folder, else those of a committed leaderboard."""
    kept = load(committed) if committed is not None and committed.is_file() else []
    cells = cells_of(board, pair, Asked(folder))
    rows = {cell.run_name: cell.measurement.rows() or _rows_among(kept, cell) for cell in cells}
    told = (outdated(cell, rows[cell.run_name]) for cell in cells)
    return Measured(board, pair, rows, tuple(filter(None, told)))


def outdated(cell: Cell, rows: Sequence[Row]) -> str | None:
    """How rows were measured where that is not what a cell asks for now; None where it is."""
    own = [row for row in rows if cell_of_row(row) == cell.place]
    now = conditions_of(cell.measurement.command)
    for row in own:
        then = conditions_of(row.command)
        differ = [name for name in dict.fromkeys([*then, *now]) if then.get(name) != now.get(name)]
        if differ:
            first, second = (", ".join(f"{name} {each.get(name, '–')}" for name in differ) for each in (then, now))
            return f"{cell.run_name}: measured with {first}; the board now asks for {second}"
    if own and (missing := cell.measurement.names() - {(row.task, row.method) for row in rows}):
        names = ", ".join(sorted({f"{short(task)} {short(method)}" for task, method in missing}))
        return f"{cell.run_name}: measured with other versions; the board now asks for {names}"
    return None


def conditions_of(command: str) -> dict[str, str]:
    """The options of a command but those of the machine and folder."""
    return {name: " ".join(words) for name, words in options_of(command).items() if name not in OF_MACHINE}


def _rows_among(kept: Sequence[Row], cell: Cell) -> list[Row]:
    """The rows of a cell among those of a whole board. Where two cells measure the same, a leaderboard keeps one row:
    it is of both."""
    if not kept:
        return []
    names, target, drafter = cell.measurement.names(), cell.pair.target or f"{EMBEDDED}target", cell.pair.drafter
    return [
        row
        for row in kept
        if (row.task, row.method) in names
        and row.target == target
        and (cell_of_row(row) == cell.place or drafter is None or row.drafter in (None, drafter))
    ]


def value_of(row: Row, metric: str) -> float | None:
    """The value of a metric, of the row's main score, or of a number of `specbench fairness`."""
    if metric.startswith(FAIRNESS):
        return _at(row.fairness, metric.removeprefix(FAIRNESS).split("."))
    found = row.metrics.get(str(row.quality) if metric == QUALITY else metric)
    return None if found is None else found.value


def _at(numbers: Any, path: Sequence[str]) -> float | None:
    """The number at the end of a path of fields and keys; None where there is none."""
    for name in path:
        numbers = numbers.get(name) if isinstance(numbers, dict) else getattr(numbers, name, None)
    if isinstance(numbers, Metric):
        return numbers.value
    return None if numbers is None or isinstance(numbers, BaseModel | dict | str) else float(numbers)


def measured_pairs(name: str, pair: str | None, folder: Path | None) -> list[Measured]:
    """The rows below `folder`, completed by those of the leaderboard that is committed beside the board's file. Without
    a pair: all that have rows, or the first one where none has."""
    board = load_board(name)
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--runs {folder}: no such folder: give the one that `specbench board run` measured into")
    committed = board_path(name).with_suffix(".json")
    pairs = [pair] if pair is not None else list(board.pairs)
    found = [measured(board, each, folder or Path("runs"), committed) for each in pairs]
    return [each for each in found if any(each.rows.values())] or found[:1]
