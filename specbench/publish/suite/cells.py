"""The cells of a suite: one task on one pair at one temperature with one seed, with all its methods."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, nearest
from specbench.publish.measurement import Asked, Measurement
from specbench.publish.suite.spec import PairSpec, SuiteSpec, TaskEntry, named
from specbench.specs import yaml_files
from specbench.specs.catalogue import load_method, load_tasks
from specbench.specs.components import build


@dataclass(frozen=True)
class Cell:
    """Methods that are measured together, since all are paired to one AR. `temperature`: null: the task's own."""

    suite: SuiteSpec
    pair_name: str
    task: TaskEntry
    temperature: float | None
    seed: int
    asked: Asked = field(default_factory=Asked)

    @property
    def pair(self) -> PairSpec:
        return self.suite.pairs[self.pair_name]

    @property
    def setting(self) -> str:
        """Temperature and seed, as the folder has them: t0.7-s0."""
        return f"s{self.seed}" if self.temperature is None else f"t{self.temperature:.10g}-s{self.seed}"

    @property
    def name(self) -> str:
        return " · ".join((self.pair_name, self.task.called, self.setting))

    @property
    def folder(self) -> Path:
        return folder_of(self.suite, self.asked) / self.pair_name / self.task.called / self.setting

    @property
    def methods(self) -> tuple[str, ...]:
        """Those of the suite that are not left out here."""
        place: dict[str, Any] = {"pair": self.pair_name, "task": self.task.called, "seed": self.seed}
        place |= {} if self.temperature is None else {"temperature": self.temperature}
        return tuple(
            method for method in self.suite.methods
            if not any(each.holds(**place, method=named(method)) for each in self.suite.exclude)
        )  # fmt: skip

    @property
    def limit(self) -> int | None:
        found = (self.asked.limit, self.pair.limit, self.task.limit, self.suite.limit)
        return next((limit for limit in found if limit is not None), None)

    @cached_property
    def measurement(self) -> Measurement:
        """The run with all its options."""
        pair, asked = self.pair, self.asked
        sampling = () if self.temperature is None else (f"generation.temperature={self.temperature:.10g}",)
        return Measurement(
            task=self.task.task, methods=self.methods, folder=self.folder, subsets=self.task.subsets,
            overrides=(*self.suite.set, *self.task.set, *sampling), target=pair.target, drafter=pair.drafter,
            threads=asked.threads, allow_code_execution=asked.allow_code_execution,
            options={"target_revision": pair.target_revision, "drafter_revision": pair.drafter_revision,
                     "data": asked.data, "limit": self.limit, "repeats": self.suite.repeats, "seed": self.seed,
                     "dtype": pair.dtype, "device": asked.device, "engine": pair.engine, "chat": pair.chat},
        )  # fmt: skip


def folder_of(suite: SuiteSpec, asked: Asked) -> Path:
    """The folder of a suite, which holds those of its cells and their leaderboard."""
    return asked.folder / "suites" / suite.name


def cells_of(suite: SuiteSpec, asked: Asked) -> list[Cell]:
    """All cells that have methods, those of a pair one after the other."""
    asked.check()
    grid = product(suite.pairs, suite.tasks, suite.temperatures or (None,), suite.seeds)
    cells = [Cell(suite, pair, task, temperature, seed, asked) for pair, task, temperature, seed in grid]
    return [cell for cell in cells if cell.methods]


def load_suite(path: Path) -> SuiteSpec:
    """The suite of a file. Raises ConfigError naming the file, the key and what is wrong; unknown tasks, subsets,
    methods and overrides among it."""
    suite = build(SuiteSpec, yaml_files.read(path), f"{path}: ")
    for number, task in enumerate(suite.tasks):
        with_prefix(f"{path}: tasks.{number}: ", lambda task=task: _check_subsets(task))
    for method in suite.methods:
        with_prefix(f"{path}: methods: ", lambda method=method: load_method(method))
    cells = cells_of(suite, Asked())
    if not cells:
        raise ConfigError(f"{path}: exclude: nothing is left of the grid: take an entry out")
    for cell in cells:
        with_prefix(f"{path}: {cell.name}: ", cell.measurement.names)
        with_prefix(f"{path}: {cell.name}: ", lambda cell=cell: _check_engine(cell))
    return suite


def is_suite(path: Path) -> bool:
    """Whether a file is meant to be a suite. Raises ConfigError where it cannot be read."""
    data = yaml_files.read(path)
    return bool({"tasks", "pairs"} & data.keys()) and "runs" not in data


def with_prefix(prefix: str, check: Any) -> None:
    """Run a check; its ConfigError says where."""
    try:
        check()
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def _check_engine(cell: Cell) -> None:
    if cell.pair.engine in ("auto", "eager"):
        return
    if own := [method for method in cell.methods if load_method(method).decoder is not None]:
        raise ConfigError(
            f"method '{named(own[0])}' has passes of its own, which engine = '{cell.pair.engine}' does not reach: "
            "exclude it there, or give a pair with the engine 'eager'"
        )


def _check_subsets(entry: TaskEntry) -> None:
    known: Sequence[str] = [name for task in load_tasks(entry.task) for name in task.subset_names]
    for subset in entry.subsets or ():
        if subset not in known:
            raise ConfigError(f"task '{entry.task}' has no subset '{subset}': {nearest(subset, known)}")
