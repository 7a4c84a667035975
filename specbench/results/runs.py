"""Reads runs from their folders: rows, specs, conditions and records."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from specbench.core import bounded
from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.extras import is_installed
from specbench.core.files import locked
from specbench.results.leaderboard import ROWS, load
from specbench.results.load import load_row, read_windows
from specbench.results.paired import RowWithRecords
from specbench.results.quality import ScoringSpec
from specbench.results.row import ALL, Row
from specbench.results.rows import MeasuredRun, Measurement, read_measurements
from specbench.running.records import Key, Record, RecordFile, check_record, record_key, records_of
from specbench.running.run_folder import RecordedMethod, read_method_specs, read_methods, read_tasks
from specbench.specs.catalogue import versioned_name
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec
from specbench.tasks.judge import JUDGED

RUN_HINT = "give the folder of a finished run, as `specbench run` prints it"
Found = TypeVar("Found")


def split_detail(text: str) -> tuple[Path, str | None]:
    """Returns path and detail of PATH:DETAIL. A text that is an existing path has no detail."""
    before, colon, detail = text.rpartition(":")
    if not colon or Path(text).exists() or not Path(before).exists():
        return Path(text), None
    return Path(before), detail


@dataclass(frozen=True)
class RecordedRun:
    """The folder of a run. Each file is read at its first use.

    Raises ConfigError for a file that is absent or broken, and for records while another process writes them.
    """

    path: Path
    _judged: dict[str, Mapping[Key, Record]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def rows(self) -> list[Row]:
        return load(self.path / ROWS)

    def rows_of(self, method: str) -> list[Row]:
        """Returns the rows of a method, by its name."""
        return [row for row in self.rows if row.method_name == method]

    @cached_property
    def tasks(self) -> tuple[TaskSpec, ...]:
        return read_tasks(self.path)

    @cached_property
    def method_specs(self) -> tuple[MethodSpec, ...]:
        return read_method_specs(self.path)

    @cached_property
    def methods(self) -> Mapping[str, RecordedMethod]:
        """The methods by name, read without torch."""
        return read_methods(self.path)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The content of run.json."""
        return bounded.read_mapping(self.path / "run.json", "restore it from a copy, or measure again", strict=False)

    @cached_property
    def records(self) -> Mapping[Key, Record]:
        """The records by their key."""
        methods = {name: method.most_draft_tokens for name, method in self.methods.items()}
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".lock", wait=False, shared=True))
            except BlockingIOError as error:
                raise ConfigError(f"run '{self.path}': another process measures into it: wait for it") from error
            except OSError:
                pass  # a read-only folder is read without a lock
            records = RecordFile(self.path / "records.jsonl").read(lambda record: check_record(record, methods))
        if not records:
            raise ConfigError(f"run '{self.path}': has no records: {RUN_HINT}")
        return {record_key(record): record for record in records}

    @cached_property
    def measurements(self) -> Sequence[Measurement]:
        return read_measurements(self.path)

    def recompute_row(self, row: Row) -> Row:
        """Computes a row again from the folder. Raises ConfigError if the folder has no such row."""
        if row.served is not None and row.served.load is not None:
            single = row.model_copy(update={"served": row.served.model_copy(update={"load": None})})
            return load_row(self.recompute_row(single), read_windows(self.path), row.served.load)
        task, method = self.task_of(row), self.method_spec_of(row)
        measurement = max(reversed(self.measurements), key=lambda each: self._likeness(each, row))
        judge = row.signatures.get(JUDGED)
        records = self._records_rated_by(judge)
        run = MeasuredRun(self.identity, self.tasks, self.method_specs, measurement, records, judge)
        try:
            return run.row(task, row.subset, method)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from error

    def with_records(self, row: Row) -> RowWithRecords:
        """Returns a row with its records and scorers."""
        method, task, records = self.method_of(row), self.task_of(row), self.records_of_row(row)
        scoring = {name: ScoringSpec.of(task.subset(name), is_installed("lingua")) for name in row.examples}
        return RowWithRecords(row, records, method, scoring)

    def task_of(self, row: Row) -> TaskSpec:
        return self._of_name(row.task, {versioned_name(each): each for each in self.tasks})

    def method_of(self, row: Row) -> RecordedMethod:
        return self._of_name(row.method, {each.named: each for each in self.methods.values()})

    def method_spec_of(self, row: Row) -> MethodSpec:
        """Returns the full specification of a row's method. It imports torch."""
        return self._of_name(row.method, {versioned_name(each): each for each in self.method_specs})

    def records_of_row(self, row: Row) -> list[Record]:
        """Returns the records of a row in the order of the run, with the ratings of its judge."""
        found = records_of(self._records_rated_by(row.signatures.get(JUDGED)), row.task_name, row.examples, row.repeats)
        num_found = len({(record["subset"], record["example"]) for record in found})
        if num_found != row.n:
            raise ConfigError(
                f"{self.path}: {row.place}: n = {row.n}, but the folder has records of {num_found} examples in "
                f"{', '.join(row.examples)}: give the folder of this row's run, or repeat its command: {row.command}"
            )
        return found

    def _likeness(self, measurement: Measurement, row: Row) -> int:
        """Returns how well a measurement fits a row: the examples count most, then the repeats and the command."""
        parts = {part.subset: part.num_examples for part in measurement.of_task(row.task_name)}
        own = parts if row.subset == ALL else {name: num for name, num in parts.items() if name == row.subset}
        return (own == row.examples) * 2 + (measurement.repeats == row.repeats) + (measurement.command == row.command)

    def _records_rated_by(self, judge: str | None) -> Mapping[Key, Record]:
        """Returns the records with the ratings of a judge."""
        if judge is None:
            return self.records
        if judge not in self._judged:
            from specbench.tasks.judge.judgements import add_scores, read_ratings  # imports the judge's client

            records = list(self.records.values())
            rated = add_scores(records, read_ratings(self.path, judge))
            self._judged[judge] = {record_key(record): record for record in rated}
        return self._judged[judge]

    def _of_name(self, name: str, known: Mapping[str, Found]) -> Found:
        if name not in known:
            raise ConfigError(f"{self.path}: has no {name}, but {', '.join(known)}: give the folder of this row's run")
        return known[name]


def run_folder_of(row: Row, file: Path) -> Path | None:
    """Returns the folder of a row's run: the one that the row names, relative to the file's folder; otherwise the
    file's folder if it is a run; otherwise None."""
    if row.run is not None:
        return file.parent / row.run
    return file.parent if (file.parent / "records.jsonl").is_file() else None


def finished_run(path: Path) -> RecordedRun:
    """Returns a finished run. Raises ConfigError for a path that is no run, and for an unfinished run."""
    if not path.is_dir():
        problem = "is a file (`specbench leaderboard merge` takes files)" if path.exists() else "no such folder"
        raise ConfigError(f"run '{path}': {problem}: {RUN_HINT}")
    if not (path / ROWS).is_file():
        raise ConfigError(f"run '{path}': has no {ROWS}, so it is not finished: repeat its command")
    run = RecordedRun(path)
    if not run.rows:
        raise ConfigError(f"run '{path}': its {ROWS} has no rows: repeat its command")
    return run


@dataclass
class RecordedRuns:
    """The folders of runs, each read once. `problems`: for each folder the reasons why its records are not used."""

    opened: dict[Path, RecordedRun] = field(default_factory=dict)
    problems: dict[Path, list[str]] = field(default_factory=dict)

    def at(self, path: Path) -> RecordedRun:
        """Returns the run of a folder."""
        return self.opened.setdefault(path.resolve(), RecordedRun(path))

    def with_records(self, row: Row, file: Path) -> RowWithRecords:
        """Returns a row of a file with its records, or without them if they cannot be read."""
        path = run_folder_of(row, file)
        if path is None or not path.is_dir() or row.level:  # rows of a load compare windows, not prompts
            return RowWithRecords(row)
        try:
            return self.at(path).with_records(row)
        except ConfigError as error:  # the folder was moved, is in use, or was changed by a later command
            self.problems.setdefault(path, []).append(str(error))
            return RowWithRecords(row)

    def problem_lines(self) -> list[str]:
        """Returns a line for each folder whose records are not used: the number of rows, and the first reason."""
        return [f"not paired, {counted(len(found), 'row')}: {found[0]}" for found in self.problems.values()]
