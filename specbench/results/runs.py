"""Reads runs from their folders: rows, specs, conditions and records."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from specbench.core import bounded, dotted
from specbench.core.console import counted
from specbench.core.environment import is_installed
from specbench.core.errors import ConfigError, nearest
from specbench.core.files import locked
from specbench.records.folder import (
    ENVIRONMENT,
    RecordedMethod,
    RunFolder,
    read_method_specs,
    read_methods,
    read_tasks,
    unused_ends_of,
)
from specbench.records.folder import FILE as SPECS
from specbench.records.records import RECORDS, Key, Record, RecordFile, keys_of
from specbench.records.store import RecordList, RecordStore
from specbench.records.windows import LOAD_RECORDS, LoadWindow, read_windows
from specbench.results.answers import Languages, Ratings, RunAnswers
from specbench.results.concurrency import load_row
from specbench.results.conditions import BASELINE, flat_fields
from specbench.results.leaderboard import ROWS, load
from specbench.results.metric_format import without_digest
from specbench.results.paired import RowWithRecords
from specbench.results.row import ALL, Row
from specbench.results.rows import MEASUREMENTS_FILE, MeasuredRun, MeasuredSubset, Measurement, read_measurements
from specbench.results.scores import ScoringSpec, languages_of
from specbench.specs.catalogue import subset_meaning, versioned_name
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec
from specbench.tasks.judge import JUDGED, JUDGEMENTS_FILE

RUN_HINT = "give the folder of a finished run, as `specbench run` prints it"
# The files of a run: those that its rows are made of, then those of its machine, a judge, loads and later analyses.
NEEDED_FILES = (RunFolder.IDENTITY, SPECS, MEASUREMENTS_FILE, RECORDS, ROWS)
FAIRNESS_FILE = "fairness.json"
RUN_FILES = (*NEEDED_FILES, ENVIRONMENT, JUDGEMENTS_FILE, LOAD_RECORDS, FAIRNESS_FILE)
Found = TypeVar("Found")


def split_detail(text: str) -> tuple[Path, str | None]:
    """Returns path and detail of PATH:DETAIL. A text that is an existing path has no detail."""
    before, colon, detail = text.rpartition(":")
    if not colon or Path(text).exists() or not Path(before).exists():
        return Path(text), None
    return Path(before), detail


@dataclass(frozen=True)
class RecordedRun:
    """The folder of a run. Each file is read at its first use. Raises ConfigError for a file that is absent or broken,
    and for records while another process writes them."""

    path: Path
    _ratings: dict[str, Ratings] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def rows(self) -> list[Row]:
        return load(self.path / ROWS)

    def rows_of(self, method: str) -> list[Row]:
        return [row for row in self.rows if row.method_name == method]

    @cached_property
    def tasks(self) -> tuple[TaskSpec, ...]:
        return read_tasks(self.path)

    @cached_property
    def method_specs(self) -> tuple[MethodSpec, ...]:
        """The specs as the run wrote them; the features of their components are those of `built_in.FEATURES`."""
        return read_method_specs(self.path, checked=False)

    @cached_property
    def methods(self) -> Mapping[str, RecordedMethod]:
        """The methods by name, read without torch."""
        return read_methods(self.path)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The content of run.json."""
        return bounded.read_mapping(
            self.path / RunFolder.IDENTITY, "restore it from a copy, or measure again", strict=False
        )

    @cached_property
    def records(self) -> RecordStore:
        return self._read()

    @cached_property
    def answers(self) -> RunAnswers:
        """The numbers of every answer, with what rows need of its language."""
        return self._read_answers(languages_of(self.tasks, is_installed("lingua")))

    @cached_property
    def answers_of_any_language(self) -> RunAnswers:
        """The same for comparisons, which need no languages: to identify them takes longer than to read."""
        return self._read_answers({})

    def read(self, hear: Callable[[Record, bytes], None]) -> None:
        """Reads records and answers anew, in one pass. `hear`: is told each record with its line."""
        vars(self).pop("records", None)
        vars(self)["answers"] = self._read_answers(languages_of(self.tasks, is_installed("lingua")), hear)

    def _read_answers(self, languages: Languages, hear: Callable[[Record, bytes], None] | None = None) -> RunAnswers:
        """If the records are not read yet, one pass reads both."""
        decodes_with = {name: method.decodes_with for name, method in self.methods.items()}
        try:
            unused_ends = unused_ends_of(self.identity)
        except ConfigError:  # a comparison does without it, and a row that is computed again tells what is wrong
            unused_ends = {}
        answers = RunAnswers(decodes_with, languages, unused_ends=unused_ends)
        if "records" in vars(self):
            for record in self.records.values():
                answers.add(record)
        else:
            vars(self)["records"] = self._read(answers.add, hear)
        return answers

    def _read(
        self, add: Callable[[Record], None] = lambda record: None,
        hear: Callable[[Record, bytes], None] | None = None,
    ) -> RecordStore:  # fmt: skip
        methods = {name: method.most_draft_tokens for name, method in self.methods.items()}

        def check(record: Record) -> None:
            record.check(methods)
            add(record)

        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".lock", wait=False, shared=True))
            except BlockingIOError as error:
                raise ConfigError(
                    f"run '{self.path}': another process is measuring into it: wait until it ends"
                ) from error
            except OSError:
                pass  # a read-only folder is read without a lock
            records = RecordStore(RecordFile(self.path / RECORDS), check, hear)
        if not records:
            raise ConfigError(f"run '{self.path}': has no records: {RUN_HINT}")
        return records

    @cached_property
    def windows(self) -> list[LoadWindow]:
        """The windows of its loads; none if it measured no load."""
        return read_windows(self.path)

    @cached_property
    def measurements(self) -> Sequence[Measurement]:
        return read_measurements(self.path)

    @cached_property
    def last_measured(self) -> Mapping[tuple[str, str], MeasuredSubset]:
        """What was measured last of each task and subset."""
        return {(part.task, part.subset): part for each in self.measurements for part in each.subsets}

    def recompute_row(self, row: Row) -> Row:
        """Computes a row again from the folder. Raises ConfigError if the folder has no such row."""
        if row.served is not None and row.served.load is not None:
            single = row.model_copy(update={"served": row.served.model_copy(update={"load": None})})
            return load_row(self.recompute_row(single), self.windows, row.served.load)
        task = self.task_of(row)
        method = self._of_name(row.method, {versioned_name(each): each for each in self.method_specs})
        measurement = self.measurement_of(row)
        judge = row.signatures.get(JUDGED)
        answers = self._rated(self.answers, judge)
        run = MeasuredRun(self.identity, self.tasks, self.method_specs, measurement, answers, judge)
        try:
            return run.row(task, row.subset, method)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from error

    def with_records(self, row: Row) -> RowWithRecords:
        method, task = self.method_of(row), self.task_of(row)
        answers = self._rated(self.answers_of_any_language, row.signatures.get(JUDGED))
        own, baseline = (answers.of(self.keys_of_row(row), name) for name in (row.method_name, BASELINE))
        scoring = {name: ScoringSpec.of(task.subset(name), False) for name in row.examples}
        return RowWithRecords(row, own, baseline, method, scoring, self.records_of_row(row, (BASELINE, method.name)))

    def task_of(self, row: Row) -> TaskSpec:
        return self._of_name(row.task, {versioned_name(each): each for each in self.tasks})

    def method_of(self, row: Row) -> RecordedMethod:
        return self._of_name(row.method, {each.named: each for each in self.methods.values()})

    def method_spec_of(self, row: Row) -> MethodSpec:
        """Returns the full specification of a row's method. It imports torch."""
        return self._of_name(row.method, {versioned_name(each): each for each in read_method_specs(self.path)})

    def records_of_row(self, row: Row, methods: Collection[str] | None = None) -> Sequence[Record]:
        """Returns the records of a row in the order of the run, with the ratings of its judge; each is read when it is
        asked for. `methods`: those that are read of a large run; by default all."""
        records = self.records.only(methods=methods)
        keys = self.keys_of_row(row)
        judge = row.signatures.get(JUDGED)
        if judge is None:
            return RecordList(records, keys)
        from specbench.tasks.judge.judgements import rated_record

        ratings = self._ratings_by(judge)
        return RecordList(records, keys, lambda record: rated_record(record, ratings))

    def keys_of_row(self, row: Row) -> list[Key]:
        keys = keys_of(self.records, row.task_name, row.examples, row.repeats)
        num_found = len({(subset, example) for _, subset, example, _, _ in keys})
        if num_found != row.n:
            raise ConfigError(
                f"{self.path}: {row.place}: n = {row.n}, but the folder has records of {num_found} examples in "
                f"{', '.join(row.examples)}: give the folder of this row's run, or repeat its command: {row.command}"
            )
        return keys

    def measurement_of(self, row: Row) -> Measurement:
        """Returns what the command of a row measured; of several commands the last that fits best."""
        return max(reversed(self.measurements), key=lambda each: self._likeness(each, row))

    def _likeness(self, measurement: Measurement, row: Row) -> int:
        """Returns how well a measurement fits a row: the examples count most, then the repeats and the command."""
        parts = {part.subset: part.num_examples for part in measurement.of_task(row.task_name)}
        own = parts if row.subset == ALL else {name: num for name, num in parts.items() if name == row.subset}
        return (own == row.examples) * 2 + (measurement.repeats == row.repeats) + (measurement.command == row.command)

    def _rated(self, answers: RunAnswers, judge: str | None) -> RunAnswers:
        """Returns answers with the ratings of a judge."""
        return answers if judge is None else answers.with_ratings(self._ratings_by(judge))

    def _ratings_by(self, judge: str) -> Ratings:
        if judge not in self._ratings:
            from specbench.tasks.judge.judgements import read_ratings  # imports the judge's client

            self._ratings[judge] = read_ratings(self.path, judge)
        return self._ratings[judge]

    def _of_name(self, name: str, known: Mapping[str, Found]) -> Found:
        if name not in known:
            raise ConfigError(f"{self.path}: has no {name}, only {', '.join(known)}: give the folder of this row's run")
        return known[name]


def run_folder_of(row: Row, file: Path) -> Path | None:
    """Returns the folder of a row's run: the one that the row names, relative to the file's folder; otherwise the
    file's folder if it is a run; otherwise None."""
    if row.run is not None:
        return file.parent / row.run
    return file.parent if (file.parent / RECORDS).is_file() else None


def points_in(path: Path) -> list[Path]:
    """Returns the finished points of a sweep's folder."""
    return sorted(file.parent for file in path.glob(f"*=*/{ROWS}"))


def finished_run(path: Path) -> RecordedRun:
    """Returns a finished run. Raises ConfigError for a path that is not a run, and for an unfinished run."""
    if not path.is_dir():
        problem = "is a file (`specbench leaderboard merge` takes files)" if path.exists() else "no such folder"
        raise ConfigError(f"run '{path}': {problem}: {RUN_HINT}")
    if not (path / ROWS).is_file():
        if points := points_in(path):
            raise ConfigError(f"run '{path}': is a sweep: give the folder of one of its points, such as {points[0]}")
        raise ConfigError(f"run '{path}': has no {ROWS}, so it is not finished: repeat its command")
    run = RecordedRun(path)
    if not run.rows:
        raise ConfigError(f"run '{path}': its {ROWS} has no rows: repeat its command")
    return run


def run_path(text: str) -> tuple[Path, str | None]:
    """Returns the folder and the method of RUN or RUN:METHOD. Raises ConfigError for a path without a finished run."""
    path, method = split_detail(text)
    if not path.is_dir():
        raise ConfigError(f"run '{text}': {'is a file' if path.exists() else 'no such folder'}: {RUN_HINT}")
    for name in (ROWS, RECORDS):
        if not (path / name).is_file():
            raise ConfigError(f"run '{path}': has no {name}: {RUN_HINT}")
    return path, method


@dataclass
class RecordedRuns:
    """The folders of runs, each read once. `problems`: for each folder the reasons why its records are not used."""

    opened: dict[Path, RecordedRun] = field(default_factory=dict)
    problems: dict[Path, list[str]] = field(default_factory=dict)

    def at(self, path: Path) -> RecordedRun:
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

    def task_keys(self, row: Row, file: Path) -> dict[str, Any] | None:
        """Returns the keys of a row's task and subset that its digest depends on, with dotted names; for a row over all
        subsets, those of the first one. None if the folder of the run does not have the task."""
        path = run_folder_of(row, file)
        try:
            tasks = () if path is None else self.at(path).tasks
        except ConfigError:  # the rows are compared without it
            return None
        subset = next(iter(row.subsets), row.subset)
        found = next((task for task in tasks if versioned_name(task) == row.task), None)
        return None if found is None else dotted.flat(subset_meaning(found, subset))

    def problem_lines(self) -> list[str]:
        """Returns a line for each folder whose records are not used: the number of rows, and the first reason."""
        return [f"not paired, {counted(len(found), 'row')}: {found[0]}" for found in self.problems.values()]


def filter_rows(rows: Sequence[Row], filters: Sequence[str]) -> list[Row]:
    """Returns the rows that match every KEY=VALUE. A key is a field of a row; parts of fields have dotted names. A task
    or method is named as NAME, NAME@VERSION or in full. Raises ConfigError for an unknown key, and for a value that no
    row has."""
    kept = list(rows)
    for text in filters:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--filter {text}: write it as KEY=VALUE, such as --filter method=sd")
        known = dict.fromkeys(name for row in rows for name in flat_fields(row))
        if key not in known:
            raise ConfigError(f"--filter {text}: no row has '{key}': {nearest(key, known)}")
        found = []
        for row in kept:
            own = str(flat_fields(row).get(key))
            names = (
                (own, without_digest(own), without_digest(own).partition("@")[0])
                if key in ("task", "method")
                else (own,)
            )
            found += [row] if value in names else []
        if not found:
            values = dict.fromkeys(str(flat_fields(row)[key]) for row in kept if key in flat_fields(row))
            raise ConfigError(f"--filter {text}: no row has this value: {nearest(value, values)}")
        kept = found
    return kept


def rows_of_subsets(rows: Sequence[Row], subsets: Sequence[str]) -> list[Row]:
    """Returns the rows of these subsets; if none is given, the `all` rows, or of a task's only subset."""
    if subsets:
        known = dict.fromkeys(row.subset for row in rows)
        for name in subsets:
            if name not in known:
                raise ConfigError(f"--subset {name}: no row has it: {nearest(name, known)}")
        return [row for row in rows if row.subset in subsets]
    whole = {(row.task, row.target, row.level) for row in rows if row.subset == "all"}
    return [row for row in rows if row.subset == "all" or (row.task, row.target, row.level) not in whole]


NUMBER = re.compile(r"(?:rows\.)?(\d+)")
INPUT_HINT = "give a run or a leaderboard file, as PATH, PATH:METHOD or FILE:NUMBER of a row"


@dataclass(frozen=True)
class ComparisonInput:
    """One side of a comparison. `text`: the user's input. `run`: None for rows of a leaderboard file."""

    text: str
    file: Path
    rows: tuple[Row, ...]
    run: RecordedRun | None = None

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(row.method_name for row in self.rows))

    def of_methods(self, method: str, *others: str) -> "ComparisonInput":
        """Returns the rows of a method and of `others`. Raises ConfigError if the method has no row."""
        if method not in self.methods:
            raise ConfigError(f"{self.text}: has no rows of method '{method}': {nearest(method, self.methods)}")
        return self.with_rows([row for row in self.rows if row.method_name in (method, *others)])

    def with_rows(self, rows: Sequence[Row]) -> "ComparisonInput":
        return replace(self, rows=tuple(rows))


def read_path(text: str, path: Path) -> ComparisonInput:
    """Returns all rows of a run's folder or of a leaderboard file. `text`: the user's input."""
    if not path.is_dir():
        return ComparisonInput(text, path, tuple(load(path)))
    run = finished_run(path)
    return ComparisonInput(text, path / ROWS, tuple(run.rows), run)


def read_baseline(text: str) -> ComparisonInput:
    """Returns the rows of a run or a leaderboard file, as PATH or PATH:METHOD. Raises ConfigError for anything else."""
    path, method = split_detail(text)
    if not path.exists():
        raise ConfigError(f"--baseline {text}: no such folder or file: give the folder of a run, or a leaderboard file")
    return _of_method(read_path(text, path), method)


def read_candidate(text: str) -> ComparisonInput:
    """Returns the rows of a run, as RUN or RUN:METHOD. Raises ConfigError for anything else."""
    path, method = split_detail(text)
    if not path.is_dir():
        problem = "is a file" if path.exists() else "no such folder"
        raise ConfigError(f"--candidate {text}: {problem}: give the folder of a run, as `specbench run` prints it")
    return _of_method(read_path(text, path), method)


def _of_method(found: ComparisonInput, method: str | None) -> ComparisonInput:
    """Returns the rows of a method and of the baseline, without rows of a load. Raises ConfigError if the records of a
    run do not match the n of its rows."""
    for row in found.run.rows_of(BASELINE) if found.run is not None else ():
        known = found.run.answers_of_any_language.keys(row.task_name) if found.run else []
        keys = keys_of(known, row.task_name, row.examples, row.repeats)
        num_found = len({example for _, _, example, _, _ in keys})
        if row.subset != ALL and num_found != row.n:
            raise ConfigError(
                f"{found.text}: {row.task_name}/{row.subset} has a row of n = {row.n} and records of {num_found}: "
                "repeat its command, which measures what is missing"
            )
    found = found.with_rows([row for row in found.rows if not row.level])
    return found if method is None else found.of_methods(method, BASELINE)


def read_input(text: str, filters: Sequence[str] = ()) -> ComparisonInput:
    """Returns the rows that PATH, PATH:METHOD or FILE:NUMBER names, one for each task, subset and method. PATH gives
    the rows of all methods; those of the baseline only if there are no others. Raises ConfigError for a path, method or
    row that does not exist, and if several rows of a task, subset and method match."""
    path, detail = split_detail(text)
    if not path.exists():
        raise ConfigError(f"'{text}': no such folder or file: {INPUT_HINT}")
    found = read_path(text, path)
    if detail is not None and detail not in found.methods and (number := NUMBER.fullmatch(detail)):
        if int(number[1]) >= len(found.rows):
            last = len(found.rows) - 1
            raise ConfigError(f"{found.text}: {found.file} has no row {int(number[1])}: the last one is {last}")
        return found.with_rows([found.rows[int(number[1])]])
    if detail is not None:
        found = found.of_methods(detail)
    if filters:
        found = found.with_rows(filter_rows(found.rows, filters))
    if detail is None and set(found.methods) != {BASELINE}:
        found = found.with_rows([row for row in found.rows if row.method_name != BASELINE])
    seen: dict[tuple[str, ...], Row] = {}
    for row in found.rows:
        if seen.setdefault((*row.names, row.level), row) is not row:
            raise ConfigError(
                f"{found.text}: has several rows of {row.place}, measured under other conditions: choose with --filter "
                "KEY=VALUE, or name one row as FILE:NUMBER (`specbench leaderboard show` prints the numbers)"
            )
    return found


def select_rows(found: ComparisonInput, tasks: Sequence[str], subsets: Sequence[str]) -> ComparisonInput:
    """Returns the rows of these tasks and subsets; an empty list selects all. Raises ConfigError for unknown ones."""
    for option, names, known in (
        ("--task", tasks, {row.task_name for row in found.rows}),
        ("--subset", subsets, {row.subset for row in found.rows}),
    ):
        for name in names:
            if name not in known:
                raise ConfigError(f"{option} {name}: {found.text} has no such rows: {nearest(name, known)}")
    rows = [row for row in found.rows if not tasks or row.task_name in tasks]
    return found.with_rows([row for row in rows if not subsets or row.subset in subsets])
