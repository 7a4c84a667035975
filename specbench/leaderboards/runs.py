"""The folder of a run, as what its rows can be recomputed from: records, the specs of tasks and methods, ratings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from specbench.errors import ConfigError
from specbench.fairness.runs import records_of, task_name
from specbench.judge.outcomes import with_judgements
from specbench.judge.recorded import ratings
from specbench.leaderboards.paired import Side
from specbench.results.leaderboard import Row, load
from specbench.results.quality import JUDGED, Asked
from specbench.running.identity import named
from specbench.running.plan import make_scorer
from specbench.running.records import Key, Record
from specbench.running.specs_file import SpecsFile, read_specs
from specbench.specs import MethodSpec, TaskSpec

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
        path = self.path / "run.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}): restore it from a copy, or measure again") from error

    @cached_property
    def records(self) -> Mapping[Key, Record]:
        return records_of(self.path, {method.name: method.most_draft_tokens for method in self.specs.methods})

    def side(self, row: Row) -> Side:
        """A row with its records and what they are judged by."""
        records, task = self.records_of_row(row), self.task_of(row)
        subsets = {subset: task.subset(subset) for subset in dict.fromkeys(record["subset"] for record in records)}
        asked = {subset: Asked(make_scorer(spec), spec.language) for subset, spec in subsets.items()}
        return Side(row, records, self.method_of(row), asked)

    def task_of(self, row: Row) -> TaskSpec:
        return self._spec(row.task, self.specs.tasks, "task")

    def method_of(self, row: Row) -> MethodSpec:
        return self._spec(row.method, self.specs.methods, "method")

    def records_of_row(self, row: Row) -> list[Record]:
        """The records of a row in the order in which the run has its examples, with the ratings of the row's judge.

        A folder may hold more, of an earlier command that asked for more. Raises ConfigError where they are not as many
        as the row says.
        """
        name = task_name(row)
        subsets = [row.subset] if row.subset != "all" else self.specs.subsets(name)
        found = {subset: self._of_subset(name, subset, row.repeats) for subset in subsets}
        num_found = sum(len(examples) for examples in found.values())
        limit = row.n // max(1, len(subsets)) if num_found > row.n else num_found
        chosen = [records for examples in found.values() for records in list(examples.values())[:limit]]
        if len(chosen) != row.n:
            raise ConfigError(
                f"{self.path}: {row.place}: n = {row.n}, but the folder has records of {num_found} examples in "
                f"{', '.join(subsets)}: give the folder of the row's own run, or repeat its command: {row.command}"
            )
        kept = [record for records in chosen for record in records]
        return self._rated(row, sorted(kept, key=lambda r: (subsets.index(r["subset"]), r["repeat"])))

    def _of_subset(self, task: str, subset: str, repeats: int) -> dict[int, list[Record]]:
        """By example, in their order, the records of its repeats and turns."""
        keys = sorted(key for key in self.records if key[:2] == (task, subset) and key[3] < repeats)
        found: dict[int, list[Record]] = {}
        for key in keys:
            found.setdefault(key[2], []).append(self.records[key])
        return found

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

    def at(self, path: Path) -> RecordedRun:
        return self.opened.setdefault(path.resolve(), RecordedRun(path))

    def side(self, row: Row, file: Path) -> Side:
        """A row with its records, where they are at hand; else alone."""
        path = place_of(row, file)
        if path is None or not path.is_dir():
            return Side(row)
        try:
            return self.at(path).side(row)
        except ConfigError:  # moved, in use, or of a later command: the row has its own numbers
            return Side(row)
