"""The folder of a run, as what its rows can be recomputed from: records, the specs of tasks and methods, ratings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from specbench import bounded
from specbench.errors import ConfigError
from specbench.fairness.runs import records_of, task_name
from specbench.judge.outcomes import with_judgements
from specbench.judge.recorded import ratings
from specbench.leaderboards.row_records import records_of_row
from specbench.leaderboards.side import Side
from specbench.results.leaderboard import load
from specbench.results.quality import JUDGED, Asked
from specbench.results.row import Row
from specbench.running.records import Key, Record
from specbench.running.specs_file import SpecsFile, read_specs
from specbench.scoring.of_task import make_scorer
from specbench.specs import MethodSpec, TaskSpec, named

ROWS = "leaderboard.json"
AnySpec = TypeVar("AnySpec", TaskSpec, MethodSpec)


@dataclass(frozen=True)
class RecordedRun:
    """Everything is read when it is first asked for. Raises ConfigError for what is absent, broken or in use."""

    path: Path

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
        return records_of(self.path, {method.name: method.most_draft_tokens for method in self.specs.methods})

    def side(self, row: Row, beside: Sequence[Row] = ()) -> Side:
        """A row with its records and what they are judged by. `beside`: the rows of its file."""
        records, task = self.records_of_row(row, beside), self.task_of(row)
        subsets = {subset: task.subset(subset) for subset in dict.fromkeys(record["subset"] for record in records)}
        asked = {subset: Asked(make_scorer(spec), spec.language) for subset, spec in subsets.items()}
        return Side(row, records, self.method_of(row), asked)

    def task_of(self, row: Row) -> TaskSpec:
        return self._spec(row.task, self.specs.tasks, "task")

    def method_of(self, row: Row) -> MethodSpec:
        return self._spec(row.method, self.specs.methods, "method")

    def records_of_row(self, row: Row, beside: Sequence[Row] = ()) -> list[Record]:
        """The records of a row in the order of the run's examples, with the ratings of the row's judge."""
        try:
            found = records_of_row(row, beside, self.specs.subsets(task_name(row)), self.records)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from error
        return self._rated(row, found)

    def _rated(self, row: Row, records: list[Record]) -> list[Record]:
        if JUDGED not in row.signatures:
            return records
        return with_judgements(records, ratings(self.path, row.signatures[JUDGED], records))

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

    def side(self, row: Row, file: Path, beside: Sequence[Row]) -> Side:
        """A row with its records, where they are at hand; else alone. `beside`: all rows of the file."""
        path = place_of(row, file)
        if path is None or not path.is_dir():
            return Side(row)
        try:
            return self.at(path).side(row, beside)
        except ConfigError as error:  # moved, in use, or of a later command: the row has its own numbers
            self.problems.setdefault(path, []).append(str(error))
            return Side(row)

    def told(self) -> list[str]:
        """A line for each folder whose records are there and are not used: the first reason, and how many rows."""
        return [
            f"not paired, {len(found)} {'row' if len(found) == 1 else 'rows'}: {found[0]}"
            for found in self.problems.values()
        ]
