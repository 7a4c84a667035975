"""One `specbench run` as a value: the request, the command that says the same, and whether its rows are there."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.resources import EMBEDDED
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.running.request import Request
from specbench.specs.catalogue import load_method, load_tasks
from specbench.specs.overrides import with_overrides
from specbench.specs.run import named

DEFAULTS: dict[str, Any] = {
    "target_revision": None, "drafter_revision": None, "data": None, "limit": None, "subsets_per_task": None,
    "repeats": 1, "seed": 0, "dtype": "auto", "device": "auto", "engine": "auto", "chat": "auto",
}  # fmt: skip
FOLDER, THREADS = "--output", "--threads"


@dataclass(frozen=True)
class Asked:
    """What the command line asks for beside the file. `folder`: that of all runs. `engine`: of boards; the pairs of a
    suite have their own."""

    folder: Path = Path("runs")
    limit: int | None = None
    data: str | None = None
    device: str = "auto"
    threads: int | None = None
    allow_code_execution: bool = False
    engine: str = "auto"

    def check(self) -> None:
        """Raise ConfigError for a limit that leaves nothing."""
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"--limit {self.limit}: give 1 or more")


@dataclass(frozen=True)
class Measurement:
    """Methods on one task and one pair of models. `options`: those of DEFAULTS that may be others."""

    task: str
    methods: tuple[str, ...]
    folder: Path
    subsets: tuple[str, ...] | None = None
    overrides: tuple[str, ...] = ()
    target: str | None = None
    drafter: str | None = None
    threads: int | None = None
    allow_code_execution: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that measures the same alone, without the options that have their default."""
        given = {"subset": self.subsets and ",".join(self.subsets), "target": self.target, "drafter": self.drafter}
        asked = {**DEFAULTS, **self.options}
        given |= {name.replace("_", "-"): value for name, value in asked.items() if value != DEFAULTS[name]}
        words = ["specbench", "run", "--task", self.task, "--method", ",".join(self.methods)]
        for name, value in {**given, "threads": self.threads}.items():
            words += [f"--{name}", str(value)] if value is not None else []
        for override in self.overrides:
            words += ["--set", override]
        words += ["--allow-code-execution"] * self.allow_code_execution
        return shlex.join([*words, "--output", str(self.folder)])

    def request(self) -> Request:
        """The same as `specbench run` is asked."""
        return Request(
            tasks=[self.task], methods=self.methods, subsets=self.subsets, overrides=self.overrides,
            target=self.target, drafter=self.drafter, threads=self.threads, output=self.folder, leaderboard=None,
            plot=None, command=self.command, options={**DEFAULTS, **self.options},
        )  # fmt: skip

    def rows(self) -> list[Row]:
        """The rows of the folder; none where it was never measured."""
        path = self.folder / "leaderboard.json"
        return load(path) if path.is_file() else []

    def is_measured(self, rows: Sequence[Row]) -> bool:
        """Whether rows are all that is asked for now: of a command that says the same, and of the tasks and methods as
        they are today; on which machine and with which versions, the rows tell."""
        asked = self._decisive(self.command)
        return {(row.task, row.method) for row in rows if self._decisive(row.command) == asked} == self.names()

    def _decisive(self, command: str) -> dict[str, list[str]]:
        """The options of a command but its folder, in which the rows are, in whatever words; the threads that it has
        where it does not say them."""
        options = options_of(command)
        own = {} if self.target is not None and not self.target.startswith(EMBEDDED) else {THREADS: ["1"]}
        return {**own, **{name: words for name, words in options.items() if name != FOLDER}}

    def names(self) -> set[tuple[str, str]]:
        """Task and method of every row, as rows name them. Raises ConfigError for those that are not known."""
        methods = [load_method(name) for name in ["ar", *self.methods]]
        tasks, methods = with_overrides(load_tasks(self.task), methods, self.overrides)
        return {(named(task), named(method)) for task in tasks for method in methods}


def options_of(command: str) -> dict[str, list[str]]:
    """The options of a command by their names, the words behind those of one name together."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split(command)[2:]:
        if word.startswith("--"):
            name = word
            found.setdefault(name, [])
        else:
            found.setdefault(name, []).append(word)
    return found


@dataclass(frozen=True)
class Outcome:
    """What became of a cell. `failure`: why it has no rows, in one line; None where it has."""

    name: str
    folder: Path
    was_measured: bool
    failure: str | None


def reason_of(error: Exception) -> str:
    """Why a cell failed, in one line."""
    return str(error) if isinstance(error, ConfigError) else " ".join(f"{type(error).__name__}: {error}".split())
