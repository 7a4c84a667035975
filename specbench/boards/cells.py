"""Cells of a board: one run on one pair, in a folder of its own."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.boards.spec import BoardRun, BoardSpec, PairSpec
from specbench.catalogue import load_method, load_tasks, with_overrides
from specbench.errors import ConfigError, nearest
from specbench.request import Request
from specbench.results.row import Row
from specbench.running.identity import named


@dataclass(frozen=True)
class Asked:
    """What the command line asks for beside the board. `folder`: that of all runs; the boards' are below it."""

    folder: Path = Path("runs")
    limit: int | None = None
    data: str | None = None
    device: str = "auto"
    threads: int | None = None
    allow_code_execution: bool = False


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

    def options(self) -> dict[str, Any]:
        """The options of `specbench run` that are not the default, by their names."""
        conditions, pair, asked = self.board.conditions, self.pair, self.asked
        given = {
            "subset": self.subsets and ",".join(self.subsets), "target": pair.target, "drafter": pair.drafter,
            "target-revision": pair.target_revision, "drafter-revision": pair.drafter_revision, "data": asked.data,
            "limit": self.limit, "repeats": self.run.repeats or conditions.repeats, "seed": conditions.seed,
            "dtype": conditions.dtype, "device": asked.device, "chat": conditions.chat, "threads": asked.threads,
        }  # fmt: skip
        defaults = {"repeats": 1, "seed": 0, "dtype": "auto", "device": "auto", "chat": "auto"}
        return {name: value for name, value in given.items() if value is not None and value != defaults.get(name)}

    @property
    def command(self) -> str:
        """The command that measures the same alone."""
        words = ["specbench", "run", "--task", self.run.task, "--method", ",".join(self.methods)]
        for name, value in self.options().items():
            words += [f"--{name}", str(value)]
        for override in self.overrides:
            words += ["--set", override]
        words += ["--allow-code-execution"] * self.asked.allow_code_execution
        return shlex.join([*words, "--output", str(self.folder)])

    @property
    def overrides(self) -> tuple[str, ...]:
        return self.board.conditions.set + self.run.set

    def request(self) -> Request:
        """The same as `specbench run` is asked."""
        conditions = self.board.conditions
        return Request(
            tasks=[self.run.task], methods=self.methods, subsets=self.subsets, overrides=self.overrides,
            target=self.pair.target, drafter=self.pair.drafter, threads=self.asked.threads, output=self.folder,
            leaderboard=None, plot=None, command=self.command,
            options={"target_revision": self.pair.target_revision, "drafter_revision": self.pair.drafter_revision,
                     "data": self.asked.data, "limit": self.limit, "subsets_per_task": None,
                     "repeats": self.run.repeats or conditions.repeats, "seed": conditions.seed,
                     "dtype": conditions.dtype, "device": self.asked.device, "chat": conditions.chat},
        )  # fmt: skip

    def is_measured(self, rows: Sequence[Row]) -> bool:
        """Whether rows are all that this cell asks for now: of the same command, and of the tasks and methods as they
        are today; on which machine and with which versions, the rows tell."""
        found = {(row.task, row.method) for row in rows if row.command == self.command}
        has_fairness = not self.run.fairness or any(row.fairness for row in rows)
        return has_fairness and found == self.names()

    def names(self) -> set[tuple[str, str]]:
        """Task and method of every row that the cell has, as rows name them."""
        methods = [load_method(name) for name in ["ar", *self.methods]]
        tasks, methods = with_overrides(load_tasks(self.run.task), methods, self.overrides)
        return {(named(task), named(method)) for task in tasks for method in methods}


def cells_of(board: BoardSpec, pair: str, asked: Asked) -> list[Cell]:
    """The cells of one pair. Raises ConfigError for one that the board has not."""
    if pair not in board.pairs:
        raise ConfigError(f"--pair {pair}: board '{board.name}' has no such pair: {nearest(pair, board.pairs)}")
    if asked.limit is not None and asked.limit < 1:
        raise ConfigError(f"--limit {asked.limit}: give 1 or more")
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
