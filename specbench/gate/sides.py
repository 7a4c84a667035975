"""The two sides of a check, read: rows, and where they are those of a run, its records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import ConfigError
from specbench.fairness.runs import Run, method_name, most_draft_tokens, read_records, split, task_name
from specbench.leaderboards.adding import finished
from specbench.leaderboards.choosing import known_method
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.running.records import Key, Record, record_key, records_of

BASELINE = "ar"
Place = tuple[str, str, str]  # task, subset and method, by their names


@dataclass(frozen=True)
class Side:
    """`text`: as it was named. `run` is None for a leaderboard file, which has rows and no records."""

    text: str
    rows: tuple[Row, ...]
    run: Run | None


def place_of(row: Row) -> Place:
    return task_name(row), row.subset, method_name(row)


def read_baseline(text: str) -> Side:
    """A run or a leaderboard file, each as PATH or PATH:METHOD. Raises ConfigError for anything else."""
    path, method = split(text)
    if path.is_dir():
        return _of_run(text, path, method)
    if not path.exists():
        raise ConfigError(f"--baseline {text}: no such folder or file: give the folder of a run, or a leaderboard file")
    return Side(text, _chosen(text, load(path), method), None)


def read_candidate(text: str) -> Side:
    """A run, as RUN or RUN:METHOD. Raises ConfigError for anything else."""
    path, method = split(text)
    if not path.is_dir():
        problem = "is a file" if path.exists() else "no such folder"
        raise ConfigError(f"--candidate {text}: {problem}: give the folder of a run, as `specbench run` prints it")
    return _of_run(text, path, method)


def _of_run(text: str, path: Path, method: str | None) -> Side:
    rows = finished(path)
    run = Run(path, tuple(rows), read_records(path, most_draft_tokens(rows)), {})
    for row in rows:
        num_found = len({record["example"] for record in records_of_row(row, run.records)})
        if row.subset != "all" and method_name(row) == BASELINE and num_found != row.n:
            raise ConfigError(
                f"{text}: {task_name(row)}/{row.subset} has a row of n = {row.n} and records of {num_found}: repeat "
                "its command, which measures what is missing"
            )
    return Side(text, _chosen(text, rows, method), run)


def _chosen(text: str, rows: Sequence[Row], method: str | None) -> tuple[Row, ...]:
    """The rows of a method and of AR, or all."""
    if method is None:
        return tuple(rows)
    known_method(text, rows, method)
    return tuple(row for row in rows if method_name(row) in (method, BASELINE))


def records_of_row(row: Row, records: Mapping[Key, Record]) -> list[Record]:
    """The records of a row; fewer than it says where the folder has no more."""
    return records_of(records, task_name(row), row.examples, row.repeats)


def by_key(records: Sequence[Record]) -> dict[Key, Record]:
    return {record_key(record): record for record in records}
