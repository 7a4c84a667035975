"""Changes of a leaderboard file, one process at a time: rows that come to it, and what is added to its rows later."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from specbench.fairness.numbers import Family, GroupNumbers
from specbench.results.leaderboard import load, not_written, write
from specbench.results.row import Evidence, Row
from specbench.running.file_lock import locked


def merge(
    path: Path | str, rows: Sequence[Row], check: Callable[[Sequence[Row]], None] = lambda rows: None
) -> list[Row]:
    """Put rows into the file: a row with the same key is replaced, and one without a judge by the same with one; all
    others are kept. Returns all rows. `check` is asked with the rows that the file holds before anything is written,
    and may raise."""
    path = Path(path).resolve()
    with ExitStack() as held:
        try:  # the lock is a file beside it: the file itself is replaced, so a lock on it would guard nothing
            held.enter_context(locked(path.with_name(f".{path.name}.lock"), wait=True))
        except OSError as error:
            raise not_written(path, error) from error
        merged = {row.key: row for row in load(path)} if path.exists() else {}
        check(list(merged.values()))
        for row in rows:
            unjudged = row.model_copy(update={"signatures": {}}).key
            if unjudged != row.key:
                merged.pop(unjudged, None)
            merged[row.key] = row
        write(path, list(merged.values()))
    return list(merged.values())


def set_verdicts(path: Path | str, verdict_of: Callable[[Row], tuple[str, Evidence] | None]) -> int:
    """Give rows of the file another verdict, with its evidence, where `verdict_of` has one for them; returns how many.
    A later run of the same configuration replaces the row, and its verdict."""
    names = ("verdict", "evidence")

    def changed(row: Row) -> dict[str, Any] | None:
        found = verdict_of(row)
        return dict(zip(names, found, strict=True)) if found else None

    return _update(path, changed)


def set_fairness(path: Path | str, fairness_of: Callable[[Row], GroupNumbers | Family | None]) -> int:
    """Give rows of the file their `fairness`, where `fairness_of` has some for them; returns how many. A later run of
    the same configuration replaces the row without them."""

    def changed(row: Row) -> dict[str, Any] | None:
        found = fairness_of(row)
        return None if found is None else {"fairness": found}

    return _update(path, changed)


def _update(path: Path | str, changed: Callable[[Row], dict[str, Any] | None]) -> int:
    """Change fields of the rows for which `changed` gives some; returns how many."""
    path = Path(path).resolve()
    with ExitStack() as held:
        try:
            held.enter_context(locked(path.with_name(f".{path.name}.lock"), wait=True))
        except OSError as error:
            raise not_written(path, error) from error
        rows = [(row, changed(row)) for row in load(path)]
        write(path, [row.model_copy(update=fields) if fields else row for row, fields in rows])
    return sum(fields is not None for _, fields in rows)
