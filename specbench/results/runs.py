"""The folder of a run, read: what its rows are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from specbench.analysis.fairness_runs import read_records, task_name
from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.results.leaderboard import load
from specbench.results.measurement import Measurement, read_measurements
from specbench.results.paired import Side
from specbench.results.quality import JUDGED, Asked
from specbench.results.row import ALL, Row
from specbench.results.rows import MeasuredRun, asked_of_subset
from specbench.running.records import Key, Record, record_key, records_of
from specbench.running.run_folder import SpecsFile, read_specs
from specbench.specs.method import MethodSpec
from specbench.specs.run import named
from specbench.specs.task import TaskSpec
from specbench.tasks.judge.judgements import ratings, with_judgements

ROWS = "leaderboard.json"
AnySpec = TypeVar("AnySpec", TaskSpec, MethodSpec)


@dataclass(frozen=True)
class RecordedRun:
    """Everything is read when it is first asked for. Raises ConfigError for what is absent, broken or in use."""

    path: Path
    _scorers: dict[tuple[str, str], Asked] = field(default_factory=dict, repr=False, compare=False)
    _judged: dict[str, Mapping[Key, Record]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def rows(self) -> list[Row]:
        return load(self.path / ROWS)

    @cached_property
    def specs(self) -> SpecsFile:
        return read_specs(self.path)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """What run.json says."""
        return bounded.read_mapping(self.path / "run.json", "restore it from a copy, or measure again", strict=False)

    @cached_property
    def records(self) -> Mapping[Key, Record]:
        return read_records(self.path, {method.name: method.most_draft_tokens for method in self.specs.methods})

    @cached_property
    def measurements(self) -> Sequence[Measurement]:
        return read_measurements(self.path)

    def row_like(self, row: Row) -> Row:
        """Returns the row that the folder gives in place of a row. Raises ConfigError where it gives none."""
        task, method = self.task_of(row), self.method_of(row)
        measurement = max(reversed(self.measurements), key=lambda each: self._likeness(each, row))
        judge = row.signatures.get(JUDGED)
        run = MeasuredRun(
            self.identity, self.specs.tasks, self.specs.methods, measurement, self._rated(judge), judge, self._asked
        )
        try:
            return run.row(task, row.subset, method)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from error

    def side(self, row: Row) -> Side:
        """Returns a row with its records and what they are judged by."""
        method, task, records = self.method_of(row), self.task_of(row), self.records_of_row(row)
        return Side(row, records, method, {subset: self._asked(task, subset) for subset in row.examples})

    def task_of(self, row: Row) -> TaskSpec:
        return self._spec(row.task, self.specs.tasks, "task")

    def method_of(self, row: Row) -> MethodSpec:
        return self._spec(row.method, self.specs.methods, "method")

    def records_of_row(self, row: Row) -> list[Record]:
        """Returns the records of a row in the order of the run, with the ratings of the row's judge."""
        found = records_of(self._rated(row.signatures.get(JUDGED)), task_name(row), row.examples, row.repeats)
        num_found = len({(record["subset"], record["example"]) for record in found})
        if num_found != row.n:
            raise ConfigError(
                f"{self.path}: {row.place}: n = {row.n}, but the folder has records of {num_found} examples in "
                f"{', '.join(row.examples)}: give the folder of the row's own run, or repeat its command: {row.command}"
            )
        return found

    def _likeness(self, measurement: Measurement, row: Row) -> int:
        """How much of what a row says of its command a measurement is of."""
        parts = {part.subset: part.num_examples for part in measurement.of_task(task_name(row))}
        own = parts if row.subset == ALL else {name: num for name, num in parts.items() if name == row.subset}
        return (own == row.examples) * 2 + (measurement.repeats == row.repeats) + (measurement.command == row.command)

    def _asked(self, task: TaskSpec, subset: str) -> Asked:
        if (task.name, subset) not in self._scorers:
            self._scorers[task.name, subset] = asked_of_subset(task, subset)
        return self._scorers[task.name, subset]

    def _rated(self, judge: str | None) -> Mapping[Key, Record]:
        """The records with the ratings of a judge."""
        if judge is None:
            return self.records
        if judge not in self._judged:
            records = list(self.records.values())
            rated = with_judgements(records, ratings(self.path, judge, records))
            self._judged[judge] = {record_key(record): record for record in rated}
        return self._judged[judge]

    def _spec(self, name: str, specs: Sequence[AnySpec], kind: str) -> AnySpec:
        for spec in specs:
            if named(spec) == name:
                return spec
        known = ", ".join(named(spec) for spec in specs)
        raise ConfigError(f"{self.path}: has no {kind} {name}: its own are {known}: name the folder of the row's run")


def place_of(row: Row, file: Path) -> Path | None:
    """The folder of a row's run: where the row says, seen from its file; else the file's folder, if it is a run's."""
    if row.run is not None:
        return file.parent / row.run
    return file.parent if (file.parent / "records.jsonl").is_file() else None


@dataclass
class Runs:
    """The folders of runs, each opened once."""

    opened: dict[Path, RecordedRun] = field(default_factory=dict)
    problems: dict[Path, list[str]] = field(default_factory=dict)  # why records that are there are not used

    def at(self, path: Path) -> RecordedRun:
        return self.opened.setdefault(path.resolve(), RecordedRun(path))

    def side(self, row: Row, file: Path) -> Side:
        """A row with its records, where they are at hand; else alone."""
        path = place_of(row, file)
        if path is None or not path.is_dir():
            return Side(row)
        try:
            return self.at(path).side(row)
        except ConfigError as error:  # moved, in use, or of a later command: the row has its own numbers
            self.problems.setdefault(path, []).append(str(error))
            return Side(row)

    def told(self) -> list[str]:
        """A line for each folder whose records are there and are not used: the first reason, and how many rows."""
        return [
            f"not paired, {len(found)} {'row' if len(found) == 1 else 'rows'}: {found[0]}"
            for found in self.problems.values()
        ]
