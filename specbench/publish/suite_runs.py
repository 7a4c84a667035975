"""Suites and their runs: each is a task on a pair, at one temperature and with one seed, with all methods."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from specbench.core.environment import EMBEDDED, builtin_dir
from specbench.core.errors import ConfigError, nearest
from specbench.publish.suite_spec import PairSpec, SuiteSpec, TaskEntry, file_name
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.running.request import Request
from specbench.specs import yaml_files
from specbench.specs.catalogue import (
    component_revisions,
    is_path,
    load_method,
    load_tasks,
    unknown_name,
    versioned_name,
    with_overrides,
)
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.run import read_servers
from specbench.specs.run_options import RunOptions
from specbench.specs.task import TaskSpec

KIND = "leaderboards"
RUNS = Path("runs")
FOLDER = "suites"  # inside the folder of runs


@dataclass(frozen=True)
class SuiteRun:
    """One run of a suite. All its methods are paired with the same AR answers. `temperature`: None is the task's.
    `options`: the options of the command line. `runs`: the folder of all runs."""

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
        """Temperature and seed as in the folder's name, such as t0.7-s0."""
        return f"s{self.seed}" if self.temperature is None else f"t{self.temperature:.10g}-s{self.seed}"

    @property
    def place(self) -> tuple[str, str, str, str]:
        """The names of suite, pair, task and setting: the last parts of the folder."""
        return self.suite.name, self.pair_name, self.task.label, self.setting

    @property
    def name(self) -> str:
        return " · ".join(self.place[1:])

    @property
    def folder(self) -> Path:
        return self.runs.joinpath(FOLDER, *self.place)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the task that are not excluded here, with the replacements of the pair."""
        place: dict[str, object] = {"pair": self.pair_name, "task": self.task.label, "seed": self.seed}
        place |= {} if self.temperature is None else {"temperature": self.temperature}
        return tuple(
            replaced for method in self.suite.methods_of(self.task)
            if not any(each.excludes(**place, method=file_name(method)) for each in self.suite.exclude)
            and (replaced := self.pair.methods.get(method, method)) is not None
        )  # fmt: skip

    @property
    def limit(self) -> int | float | None:
        """The examples per subset; None: all."""
        found = (self.options.limit, self.pair.limit, self.task.limit, self.suite.limit)
        return next((limit for limit in found if limit is not None), None)

    @cached_property
    def request(self) -> Request:
        suite, pair, task = self.suite, self.pair, self.task
        sampling = () if self.temperature is None else (f"generation.temperature={self.temperature:.10g}",)
        given = {
            **pair.options, "target": pair.target if pair.servers is None else None,
            "engine": self.options.engine if pair.engine == "auto" else pair.engine,
        }  # fmt: skip
        options = replace(
            self.options, **given, subsets=pair.subsets.get(task.label, task.subsets), limit=self.limit,
            repeats=task.repeats or suite.repeats, seed=self.seed, overrides=(*suite.set, *task.set, *sampling),
        )  # fmt: skip
        servers = [] if pair.servers is None else ["--servers", pair.servers]
        methods = ",".join(self.methods)
        words = ["specbench", "run", "--task", task.task, "--method", methods, *servers, *options.words()]
        is_sample = (pair.target or EMBEDDED).startswith(EMBEDDED) and options.data in (None, "sample")
        if is_sample and options.limit is None:  # otherwise `specbench run` measures only a part
            words += ["--limit", "all"]
        command = shlex.join([*words, "--output", str(self.folder)])
        file = None if pair.servers is None else Path(pair.servers)
        return Request([task.task], self.methods, options, command, output=self.folder, servers=file)

    def rows(self) -> list[Row]:
        """Returns the rows of the folder; an empty list if it was never measured."""
        path = self.folder / "leaderboard.json"
        return load(path) if path.is_file() else []

    def is_measured(self, rows: Sequence[Row]) -> bool:
        """Returns whether the rows cover the run's current request with the current versions of tasks and methods, and
        the current code of plug-ins. The machine, the versions of packages and the warm-up may be others."""
        has_fairness = not self.task.fairness or any(row.fairness for row in rows)
        own = [row for row in rows if self.request.is_answered_by(row.request)]
        names = {(row.task, row.method) for row in own}
        if not rows or not has_fairness or names != self.row_names():
            return False
        tasks, methods = self.specs
        decoders = {versioned_name(each): each.decoder.entry for each in methods
                    if each.decoder is not None and each.decoder.type == "external"}  # fmt: skip
        if decoders:
            from specbench.integrations.external import load_entry

            for row in own:
                entry = decoders.get(row.method)
                if entry is not None and row.options["decoder"].get("revision") != load_entry(entry).revision:
                    return False
        measured = {name: code for row in own for name, code in row.options.get("code", {}).items()}
        return measured == component_revisions(tasks, methods)

    def row_names(self) -> set[tuple[str, str]]:
        """Returns task and method of every row, as rows name them. Raises ConfigError for unknown ones, and if the file
        of servers cannot be read."""
        tasks, methods = self.specs
        return {(versioned_name(task), versioned_name(method)) for task in tasks for method in methods}

    @cached_property
    def specs(self) -> tuple[list[TaskSpec], list[MethodSpec]]:
        """The tasks and methods of the run, with AR. Raises ConfigError as `row_names` does."""
        if self.pair.servers is None:
            specs = [load_method(name) for name in dict.fromkeys(["ar", *self.methods])]
        else:
            specs = read_servers(Path(self.pair.servers)).methods(self.methods)
        return with_overrides(load_tasks(self.task.task), specs, self.request.options.overrides)


def runs_of(
    suite: SuiteSpec, options: RunOptions | None = None, runs: Path = RUNS, pair: str | None = None,
    tasks: Sequence[str] | None = None,
) -> list[SuiteRun]:  # fmt: skip
    """Returns all runs that have methods, pair by pair. `pair`, `tasks`: select a pair and tasks; None selects all.
    Raises ConfigError for a pair or task that the suite lacks."""
    options = options or RunOptions()
    if pair is not None and pair not in suite.pairs:
        raise ConfigError(f"--pair {pair}: suite '{suite.name}' has no such pair: {nearest(pair, suite.pairs)}")
    grid = product([pair] if pair else suite.pairs, suite.tasks, suite.temperatures or (None,), suite.seeds)
    every = [SuiteRun(suite, *place, options, runs) for place in grid]
    every = [run for run in every if run.methods and run.task.label in (run.pair.tasks or [run.task.label])]
    if tasks is None:
        return every
    known = {run.task.label for run in every}
    for name in tasks or [""]:
        if name not in known:
            raise ConfigError(f"--task '{name}': no selected pair has this task: {nearest(name, known)}")
    return [run for run in every if run.task.label in tasks]


def board_names() -> list[str]:
    return sorted(path.stem for path in builtin_dir(KIND).glob("*.yaml"))


def suite_path(name_or_path: str) -> Path:
    """Returns the file of a built-in suite, or the path if a path is given. Raises ConfigError for an unknown name."""
    if is_path(name_or_path):
        return Path(name_or_path)
    if name_or_path not in board_names():
        raise unknown_name("board", name_or_path, board_names())
    return builtin_dir(KIND) / f"{name_or_path}.yaml"


def read_suite(name_or_path: str) -> SuiteSpec:
    """Reads a suite. Raises ConfigError naming the file, the key and the problem."""
    path = suite_path(name_or_path)
    suite = build(SuiteSpec, yaml_files.read(path), f"{path}: ")
    if suite.published and path.stem != suite.name:  # its leaderboard is the .json of the same name
        raise ConfigError(f"{path}: name = '{suite.name}': must be the name of the file, '{path.stem}'")
    return suite


def load_suite(name_or_path: str) -> SuiteSpec:
    """Reads a suite and checks that all its runs can be measured. Raises ConfigError also for unknown tasks, subsets,
    methods and overrides."""
    path, suite = suite_path(name_or_path), read_suite(name_or_path)
    for number, task in enumerate(suite.tasks):
        with prefix_errors(f"{path}: tasks.{number}: "):
            known = [name for each in load_tasks(task.task) for name in each.subset_names]
            for subsets in (task.subsets or (), *(pair.subsets.get(task.label, ()) for pair in suite.pairs.values())):
                for subset in subsets:
                    if subset not in known:
                        raise ConfigError(f"task '{task.task}' has no subset '{subset}': {nearest(subset, known)}")
    runs = runs_of(suite)
    if not runs:
        raise ConfigError(f"{path}: exclude: no run of the grid is left: remove an entry")
    measured = {run.pair_name for run in runs}
    for name, pair in suite.pairs.items():
        if pair.methods and name not in measured:
            raise ConfigError(f"{path}: pairs.{name}.methods: no method is left to measure: leave the pair out")
    different = dict[tuple[object, ...], SuiteRun]()
    for run in runs:
        different.setdefault((run.task.label, run.methods, run.temperature, run.pair.engine), run)
    for run in () if suite.is_served else different.values():  # figures can be shown without the files of servers
        with prefix_errors(f"{path}: {run.name}: "):
            own = [method.name for method in run.specs[1] if method.decoder is not None]
            if own and run.pair.engine not in ("auto", "eager"):
                raise ConfigError(
                    f"method '{own[0]}': external decoders ignore engine = '{run.pair.engine}': exclude it "
                    "there, or give a pair with the engine 'eager'"
                )
    return suite


def is_suite(path: Path) -> bool:
    """Returns whether a file has the keys of a suite. Raises ConfigError if it cannot be read."""
    return bool({"tasks", "pairs"} & yaml_files.read(path).keys())


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Puts `prefix` before the text of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error
