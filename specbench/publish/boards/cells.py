"""Cells of a board: one run on one pair, in a folder of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench.core.errors import ConfigError, nearest
from specbench.publish.boards.spec import BoardRun, BoardSpec, PairSpec
from specbench.publish.measurement import Asked, Measurement
from specbench.results.row import Row


@dataclass(frozen=True)
class Cell:
    """One run of a board on one pair."""

    board: BoardSpec
    pair_name: str
    run_name: str
    asked: Asked = field(default_factory=Asked)

    @property
    def pair(self) -> PairSpec:
        return self.board.pairs[self.pair_name]

    @property
    def run(self) -> BoardRun:
        return self.board.runs[self.run_name]

    @property
    def place(self) -> tuple[str, str, str]:
        """Board, pair and run: the last parts of the folder."""
        return self.board.name, self.pair_name, self.run_name

    @property
    def folder(self) -> Path:
        return self.asked.folder.joinpath("boards", *self.place)

    def method(self, name: str) -> str | None:
        """What this pair measures for a method of the board; None: nothing."""
        return self.pair.methods.get(name, name)

    @property
    def methods(self) -> list[str]:
        return [method for name in self.run.methods if (method := self.method(name)) is not None]

    @property
    def subsets(self) -> tuple[str, ...] | None:
        return self.pair.subsets.get(self.run_name, self.run.subsets)

    @property
    def limit(self) -> int | None:
        """Examples per subset: of the command line, else the pair, the run, the conditions."""
        found = (self.asked.limit, self.pair.limit, self.run.limit, self.board.conditions.limit)
        return next((limit for limit in found if limit is not None), None)

    @property
    def measurement(self) -> Measurement:
        """The run with all its options."""
        conditions, pair, asked = self.board.conditions, self.pair, self.asked
        return Measurement(
            task=self.run.task, methods=tuple(self.methods), folder=self.folder, subsets=self.subsets,
            overrides=conditions.set + self.run.set, target=pair.target, drafter=pair.drafter, threads=asked.threads,
            allow_code_execution=asked.allow_code_execution,
            options={"target_revision": pair.target_revision, "drafter_revision": pair.drafter_revision,
                     "data": asked.data, "limit": self.limit, "repeats": self.run.repeats or conditions.repeats,
                     "seed": conditions.seed, "dtype": conditions.dtype, "device": asked.device,
                     "engine": asked.engine, "chat": conditions.chat},
        )  # fmt: skip

    def is_measured(self, rows: Sequence[Row]) -> bool:
        """Whether rows are all that this cell asks for now, the numbers of `specbench fairness` among them."""
        has_fairness = not self.run.fairness or any(row.fairness for row in rows)
        return has_fairness and self.measurement.is_measured(rows)


def cells_of(board: BoardSpec, pair: str, asked: Asked) -> list[Cell]:
    """The cells of one pair. Raises ConfigError for one that the board has not."""
    if pair not in board.pairs:
        raise ConfigError(f"--pair {pair}: board '{board.name}' has no such pair: {nearest(pair, board.pairs)}")
    asked.check()
    runs = board.pairs[pair].runs or tuple(board.runs)
    cells = [Cell(board, pair, run, asked) for run in board.runs if run in runs]
    return [cell for cell in cells if cell.methods]


def chosen(cells: list[Cell], names: Sequence[str] | None) -> list[Cell]:
    """The cells of these runs; all when absent. Raises ConfigError for one that the pair has not."""
    if names is None:
        return cells
    known = {cell.run_name: cell for cell in cells}
    for name in names or [""]:
        if name not in known:
            raise ConfigError(f"--only '{name}': the pair has no such run: {nearest(name, known)}")
    return [cell for cell in cells if cell.run_name in names]
