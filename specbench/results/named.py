"""What `specbench compare` is given → rows with their records: a run, a method of it, or rows of a board file."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench.analysis.fairness_runs import method_name, split, task_name
from specbench.core.errors import ConfigError, nearest
from specbench.results.adding import finished
from specbench.results.leaderboard import load
from specbench.results.paired import Side
from specbench.results.row import Row
from specbench.results.runs import ROWS, Runs
from specbench.results.units import short

VERSIONED = ("task", "method")  # also by their bare names
LEFT_OUT = ("metrics", "format")


def filtered(rows: Sequence[Row], filters: Sequence[str]) -> list[Row]:
    """The rows in which every KEY=VALUE holds; keys are fields, dotted where they have parts, as the file has them.

    Raises ConfigError for an unknown key, and for a value that no row has.
    """
    chosen = list(rows)
    for text in filters:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--filter {text}: write it as KEY=VALUE, such as --filter method=sd")
        known = dict.fromkeys(name for row in rows for name in leaves(row))
        if key not in known:
            raise ConfigError(f"--filter {text}: no row has '{key}': {nearest(key, known)}")
        found = [row for row in chosen if value in names_of(row, key)]
        if not found:
            values = dict.fromkeys(str(leaves(row)[key]) for row in chosen if key in leaves(row))
            raise ConfigError(f"--filter {text}: no row has this value: {nearest(value, values)}")
        chosen = found
    return chosen


def known_method(text: str, rows: Sequence[Row], method: str) -> None:
    """Raise ConfigError where no row is of a method; `text`: as the rows were named."""
    methods = list(dict.fromkeys(map(method_name, rows)))
    if method not in methods:
        raise ConfigError(f"{text}: has no rows of method '{method}': {nearest(method, methods)}")


def names_of(row: Row, key: str) -> tuple[str, ...]:
    """What a field may be called: its value; of tasks and methods also the name alone, and with its version."""
    value = str(leaves(row).get(key))
    return (value, short(value), short(value).partition("@")[0]) if key in VERSIONED else (value,)


def leaves(row: Row) -> dict[str, Any]:
    """Every field that is not a metric, dotted where it has parts; null and true as JSON has them."""
    return _leaves(row.model_dump(mode="json", exclude=set(LEFT_OUT)), "")


def _leaves(value: Any, prefix: str) -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        found: dict[str, Any] = {}
        for key, part in value.items():
            found |= _leaves(part, f"{prefix}.{key}" if prefix else str(key))
        return found
    if value is None or isinstance(value, bool):
        return {prefix: json.dumps(value)}
    return {prefix: value}


def of_subsets(rows: Sequence[Row], subsets: Sequence[str]) -> list[Row]:
    """The rows of these subsets; where none is named those over all subsets, and of a task's only one."""
    if subsets:
        known = dict.fromkeys(row.subset for row in rows)
        for name in subsets:
            if name not in known:
                raise ConfigError(f"--subset {name}: no row has it: {nearest(name, known)}")
        return [row for row in rows if row.subset in subsets]
    whole = {(row.task, row.target) for row in rows if row.subset == "all"}
    return [row for row in rows if row.subset == "all" or (row.task, row.target) not in whole]


NUMBER = re.compile(r"(?:rows\.)?(\d+)")
HOW = "give a run or a board file, as PATH, PATH:METHOD or FILE:NUMBER of a row"


@dataclass(frozen=True)
class Named:
    """One of the two, as it was named, with the rows of one method: one for each task and subset."""

    text: str
    file: Path
    rows: tuple[Row, ...]

    def places(self) -> dict[tuple[str, str], Row]:
        return {(task_name(row), row.subset): row for row in self.rows}

    def side(self, row: Row, runs: Runs) -> Side:
        return runs.side(row, self.file)


def read_side(text: str, filters: Sequence[str] = ()) -> Named:
    """Raises ConfigError for what is not there, and where it is not plain which rows are meant."""
    path, detail = split(text)
    if not path.exists():
        raise ConfigError(f"'{text}': no such folder or file: {HOW}")
    file, rows = (path / ROWS, finished(path)) if path.is_dir() else (path, load(path))
    methods = list(dict.fromkeys(map(method_name, rows)))
    if detail is not None and detail not in methods and (found := NUMBER.fullmatch(detail)):
        number = int(found[1])
        if number >= len(rows):
            raise ConfigError(f"{text}: {file} has no row {number}: the last one is {len(rows) - 1}")
        return Named(text, file, (rows[number],))
    if detail is not None:
        known_method(text, rows, detail)
    if filters:
        rows = filtered(rows, filters)
    method = detail or only_method(text, rows)
    return Named(text, file, tuple(one_each(text, [row for row in rows if method_name(row) == method])))


def only_method(text: str, rows: Sequence[Row]) -> str:
    """The one method that is not the baseline; where there are several, one must be named."""
    methods = list(dict.fromkeys(method_name(row) for row in rows))
    others = [name for name in methods if name != "ar"] or methods
    if len(others) > 1:
        raise ConfigError(f"{text}: has rows of {', '.join(others)}: choose one, as {text}:{others[0]}")
    return others[0]


def one_each(text: str, rows: Sequence[Row]) -> list[Row]:
    """Of each task and subset one row. Raises ConfigError where there are several, with their numbers' use."""
    seen: dict[tuple[str, str], Row] = {}
    for row in rows:
        if seen.setdefault((task_name(row), row.subset), row) is not row:
            raise ConfigError(
                f"{text}: has several rows of {row.place}, measured under other conditions: choose with --filter "
                "KEY=VALUE, or name one row as FILE:NUMBER (`specbench leaderboard show` prints the numbers)"
            )
    return list(seen.values())


def only(side: Named, tasks: Sequence[str], subsets: Sequence[str]) -> Named:
    """The rows of these tasks and subsets; all where none is named. Raises ConfigError for one that there is not."""
    for option, names, known in (
        ("--task", tasks, {task_name(row) for row in side.rows}),
        ("--subset", subsets, {row.subset for row in side.rows}),
    ):
        for name in names:
            if name not in known:
                raise ConfigError(f"{option} {name}: {side.text} has no such rows: {nearest(name, known)}")
    chosen = [row for row in side.rows if (not tasks or task_name(row) in tasks)]
    return replace(side, rows=tuple(row for row in chosen if not subsets or row.subset in subsets))
