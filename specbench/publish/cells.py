"""The suites that there are, and the cells of one: a task on a pair at one temperature with one seed, all methods."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, nearest
from specbench.core.resources import EMBEDDED, builtin_dir
from specbench.publish.suite_spec import PairSpec, SuiteSpec, TaskEntry, file_name
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.running.request import Request
from specbench.specs import yaml_files
from specbench.specs.catalogue import is_path, load_method, load_tasks, unknown_name
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.overrides import with_overrides
from specbench.specs.run import versioned_name
from specbench.specs.run_options import RunOptions
from specbench.specs.servers import read_servers

KIND = "leaderboards"
RUNS = Path("runs")
FOLDER = "suites"  # in the folder of runs


@dataclass(frozen=True)
class SuiteCell:
    """Methods that one run measures, since all are paired with the same AR answers. `temperature`: the task's own when
    None. `options`: those of the command line. `runs`: the folder of all runs."""

    suite: SuiteSpec
    pair_name: str
    task: TaskEntry
    temperature: float | None
    seed: int
    options: RunOptions = field(default_factory=RunOptions)
    runs: Path = RUNS

    @property
    def pair(self) -> PairSpec:
        return self.suite.pairs[self.pair_name]

    @property
    def setting(self) -> str:
        """Returns temperature and seed as the folder has them, such as t0.7-s0."""
        return f"s{self.seed}" if self.temperature is None else f"t{self.temperature:.10g}-s{self.seed}"

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Returns the names of suite, pair, task and setting: the last parts of the folder."""
        return self.suite.name, self.pair_name, self.task.label, self.setting

    @property
    def name(self) -> str:
        return " · ".join(self.place[1:])

    @property
    def folder(self) -> Path:
        return self.runs.joinpath(FOLDER, *self.place)

    @property
    def methods(self) -> tuple[str, ...]:
        """Returns the methods of the task that are not excluded here, as the pair replaces them."""
        place: dict[str, Any] = {"pair": self.pair_name, "task": self.task.label, "seed": self.seed}
        place |= {} if self.temperature is None else {"temperature": self.temperature}
        return tuple(
            replaced for method in self.suite.methods_of(self.task)
            if not any(each.excludes(**place, method=file_name(method)) for each in self.suite.exclude)
            and (replaced := self.pair.methods.get(method, method)) is not None
        )  # fmt: skip

    @property
    def specs(self) -> list[MethodSpec]:
        """Returns AR and the methods. Raises ConfigError for one that is unknown, and for a file of servers that cannot
        be read."""
        if self.pair.servers is None:
            return [load_method(name) for name in dict.fromkeys(["ar", *self.methods])]
        return read_servers(Path(self.pair.servers)).methods(self.methods)

    @property
    def limit(self) -> int | float | None:
        """Returns the examples per subset; None: all."""
        found = (self.options.limit, self.pair.limit, self.task.limit, self.suite.limit)
        return next((limit for limit in found if limit is not None), None)

    @cached_property
    def request(self) -> Request:
        """Returns the run that measures the cell."""
        suite, pair, task = self.suite, self.pair, self.task
        sampling = () if self.temperature is None else (f"generation.temperature={self.temperature:.10g}",)
        options = replace(
            self.options, subsets=pair.subsets.get(task.label, task.subsets),
            target=pair.target if pair.servers is None else None, drafter=pair.drafter,
            target_revision=pair.target_revision, drafter_revision=pair.drafter_revision, limit=self.limit,
            repeats=task.repeats or suite.repeats, seed=self.seed, dtype=pair.dtype, chat=pair.chat,
            chat_template_args=pair.chat_template_args,
            engine=self.options.engine if pair.engine == "auto" else pair.engine,
            overrides=(*suite.set, *task.set, *sampling),
        )  # fmt: skip
        servers = [] if pair.servers is None else ["--servers", pair.servers]
        words = [
            "specbench",
            "run",
            "--task",
            task.task,
            "--method",
            ",".join(self.methods),
            *servers,
            *options.words(),
        ]
        is_sample = (pair.target or EMBEDDED).startswith(EMBEDDED) and options.data in (None, "sample")
        if is_sample and options.limit is None:  # else `specbench run` measures a share
            words += ["--limit", "all"]
        command = shlex.join([*words, "--output", str(self.folder)])
        file = None if pair.servers is None else Path(pair.servers)
        return Request([task.task], self.methods, options, command, output=self.folder, servers=file)

    def rows(self) -> list[Row]:
        """Returns the rows of the folder; none where it was never measured."""
        path = self.folder / "leaderboard.json"
        return load(path) if path.is_file() else []

    def is_measured(self, rows: Sequence[Row]) -> bool:
        """Returns whether rows cover this cell's current request, with the tasks and methods as they are today. The
        machine and the versions stand in the rows."""
        asked = self.request.settings()
        has_fairness = not self.task.fairness or any(row.fairness for row in rows)
        return (
            bool(rows)
            and has_fairness
            and {(row.task, row.method) for row in rows if row.request == asked} == self.row_names()
        )

    def row_names(self) -> set[tuple[str, str]]:
        """Returns task and method of every row, as rows name them. Raises ConfigError for those that are unknown."""
        tasks, methods = with_overrides(load_tasks(self.task.task), self.specs, self.request.options.overrides)
        return {(versioned_name(task), versioned_name(method)) for task in tasks for method in methods}


def cells_of(
    suite: SuiteSpec, options: RunOptions | None = None, runs: Path = RUNS, pair: str | None = None,
    tasks: Sequence[str] | None = None,
) -> list[SuiteCell]:  # fmt: skip
    """Returns all cells that have methods, those of a pair one after the other. `pair`, `tasks`: a pair and tasks, all
    when None. Raises ConfigError for a pair or task that the suite has not."""
    options = options or RunOptions()
    if pair is not None and pair not in suite.pairs:
        raise ConfigError(f"--pair {pair}: suite '{suite.name}' has no such pair: {nearest(pair, suite.pairs)}")
    grid = product([pair] if pair else suite.pairs, suite.tasks, suite.temperatures or (None,), suite.seeds)
    cells = [SuiteCell(suite, *place, options, runs) for place in grid]
    cells = [cell for cell in cells if cell.methods and cell.task.label in (cell.pair.tasks or [cell.task.label])]
    if tasks is None:
        return cells
    known = {cell.task.label for cell in cells}
    for name in tasks or [""]:
        if name not in known:
            raise ConfigError(f"--task '{name}': no chosen pair has such a task: {nearest(name, known)}")
    return [cell for cell in cells if cell.task.label in tasks]


def folder_of(suite: SuiteSpec, runs: Path) -> Path:
    """Returns the folder of a suite, which holds those of its cells and their leaderboard."""
    return runs / FOLDER / suite.name


def board_names() -> list[str]:
    """Returns the names of the built-in suites."""
    return sorted(path.stem for path in builtin_dir(KIND).glob("*.yaml"))


def suite_path(name_or_path: str) -> Path:
    """Returns the file of a built-in suite, or the path itself where it is one. Raises ConfigError for an unknown
    name."""
    if is_path(name_or_path):
        return Path(name_or_path)
    if name_or_path not in board_names():
        raise unknown_name("board", name_or_path, board_names())
    return builtin_dir(KIND) / f"{name_or_path}.yaml"


def read_suite(name_or_path: str) -> SuiteSpec:
    """Returns a suite as its file says it. Raises ConfigError naming the file, the key and the problem."""
    path = suite_path(name_or_path)
    suite = build(SuiteSpec, yaml_files.read(path), f"{path}: ")
    if suite.published and path.stem != suite.name:  # its leaderboard is the .json beside it
        raise ConfigError(f"{path}: name = '{suite.name}': must be the file's own name, '{path.stem}'")
    return suite


def load_suite(name_or_path: str) -> SuiteSpec:
    """Returns a suite all of whose cells can be measured. Raises ConfigError also for unknown tasks, subsets, methods
    and overrides."""
    path, suite = suite_path(name_or_path), read_suite(name_or_path)
    for number, task in enumerate(suite.tasks):
        with prefixed(f"{path}: tasks.{number}: "):
            _check_subsets(task, [name for pair in suite.pairs.values() for name in pair.subsets.get(task.label, ())])
        with prefixed(f"{path}: methods: "):
            for method in () if suite.is_served else suite.methods_of(task):
                load_method(method)
    for name, pair in {} if suite.is_served else suite.pairs.items():
        with prefixed(f"{path}: pairs.{name}.methods: "):
            for method in filter(None, pair.methods.values()):
                load_method(method)
            if pair.methods and not cells_of(suite, pair=name):
                raise ConfigError("nothing is left to measure: leave the pair out")
    cells = cells_of(suite)
    if not cells:
        raise ConfigError(f"{path}: exclude: nothing is left of the grid: take an entry out")
    checked = set()
    for cell in cells:
        key = cell.task.label, cell.methods, cell.temperature, cell.pair.engine
        if key not in checked:
            checked.add(key)
            with prefixed(f"{path}: {cell.name}: "):
                if not suite.is_served:  # the file of the servers may not be there yet, and the published figures are
                    cell.row_names()
                    _check_engine(cell)
    return suite


def is_suite(path: Path) -> bool:
    """Returns whether a file is meant to be a suite. Raises ConfigError where it cannot be read."""
    return bool({"tasks", "pairs"} & yaml_files.read(path).keys())


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Puts `prefix` before the text of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def _check_engine(cell: SuiteCell) -> None:
    own = [method for method in cell.methods if load_method(method).decoder is not None]
    if own and cell.pair.engine not in ("auto", "eager"):
        raise ConfigError(
            f"method '{file_name(own[0])}' makes passes of its own, which engine = '{cell.pair.engine}' does not "
            "reach: exclude it there, or give a pair with the engine 'eager'"
        )


def _check_subsets(entry: TaskEntry, added: Sequence[str]) -> None:
    known = [name for task in load_tasks(entry.task) for name in task.subset_names]
    for subset in (*(entry.subsets or ()), *added):
        if subset not in known:
            raise ConfigError(f"task '{entry.task}' has no subset '{subset}': {nearest(subset, known)}")
