"""The inputs of `specbench compare` and `specbench check`: a run, one of its methods, or rows of a leaderboard file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.core.errors import ConfigError, nearest
from specbench.results.conditions import BASELINE, flat_fields
from specbench.results.leaderboard import ROWS, load
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun, finished_run, split_detail
from specbench.results.units import short
from specbench.running.records import records_of


def filter_rows(rows: Sequence[Row], filters: Sequence[str]) -> list[Row]:
    """Returns the rows that match every KEY=VALUE. A key is a field of a row; parts of fields have dotted names.

    Raises ConfigError for an unknown key, and for a value that no row has.
    """
    kept = list(rows)
    for text in filters:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--filter {text}: write it as KEY=VALUE, such as --filter method=sd")
        known = dict.fromkeys(name for row in rows for name in flat_fields(row))
        if key not in known:
            raise ConfigError(f"--filter {text}: no row has '{key}': {nearest(key, known)}")
        found = [row for row in kept if value in names_of(row, key)]
        if not found:
            values = dict.fromkeys(str(flat_fields(row)[key]) for row in kept if key in flat_fields(row))
            raise ConfigError(f"--filter {text}: no row has this value: {nearest(value, values)}")
        kept = found
    return kept


def names_of(row: Row, key: str) -> tuple[str, ...]:
    """Returns the texts by which a filter may give the value of a field: for tasks and methods also NAME and
    NAME@VERSION."""
    value = str(flat_fields(row).get(key))
    return (value, short(value), short(value).partition("@")[0]) if key in ("task", "method") else (value,)


def rows_of_subsets(rows: Sequence[Row], subsets: Sequence[str]) -> list[Row]:
    """Returns the rows of these subsets; if none is given, the rows over all subsets, or of a task's only subset."""
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
        """The names of its methods, in order."""
        return list(dict.fromkeys(row.method_name for row in self.rows))

    def of_methods(self, method: str, *others: str) -> "ComparisonInput":
        """Returns the rows of a method and of `others`. Raises ConfigError if the method has no row."""
        if method not in self.methods:
            raise ConfigError(f"{self.text}: has no rows of method '{method}': {nearest(method, self.methods)}")
        return self.with_rows([row for row in self.rows if row.method_name in (method, *others)])

    def with_rows(self, rows: Sequence[Row]) -> "ComparisonInput":
        """Returns the input with these rows only."""
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
        records = records_of(found.run.records, row.task_name, row.examples, row.repeats) if found.run else []
        num_found = len({record["example"] for record in records})
        if row.subset != ALL and num_found != row.n:
            raise ConfigError(
                f"{found.text}: {row.task_name}/{row.subset} has a row of n = {row.n} and records of {num_found}: "
                "repeat its command, which measures what is missing"
            )
    found = found.with_rows([row for row in found.rows if not row.level])
    return found if method is None else found.of_methods(method, BASELINE)


def read_input(text: str, filters: Sequence[str] = ()) -> ComparisonInput:
    """Returns the rows that PATH, PATH:METHOD or FILE:NUMBER names, one for each task, subset and method. PATH gives
    the rows of all methods; those of the baseline only if there are no others.

    Raises ConfigError for a path, method or row that does not exist, and if several rows of a task, subset and method
    match.
    """
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
    _check_one_each(found)
    return found


def _check_one_each(found: ComparisonInput) -> None:
    """Raises ConfigError if a method has several rows of a task and subset."""
    seen: dict[tuple[str, ...], Row] = {}
    for row in found.rows:
        if seen.setdefault((*row.names, row.level), row) is not row:
            raise ConfigError(
                f"{found.text}: has several rows of {row.place}, measured under other conditions: choose with --filter "
                "KEY=VALUE, or name one row as FILE:NUMBER (`specbench leaderboard show` prints the numbers)"
            )


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
