"""Fairness numbers in the rows of a leaderboard: those of a group in the row of its subset, those of all in `all`."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from specbench.analysis.fairness.request import Answer
from specbench.core.errors import ConfigError
from specbench.results.leaderboard import load, set_fairness
from specbench.results.row import Family, GroupNumbers, Row


def fairness_rows(answer: Answer) -> dict[str, GroupNumbers | Family]:
    """What belongs to which row, by the row's key. `all` gets the numbers of the family only where that is exactly its
    subsets."""
    found: dict[str, GroupNumbers | Family] = {}
    runs = {str(run.path): run for run in answer.common.runs}
    for drafter in answer.report.drafters:
        if drafter.run is None:
            continue
        rows = [row for row in runs[drafter.run].rows if row.method_name == drafter.method]
        places = {(group.task, group.subset): group for group in drafter.groups.values()}
        for row in rows:
            subsets = {other.subset for other in rows if other.task == row.task and other.subset != "all"}
            group = places.get((row.task_name, row.subset))
            if group is not None:
                found[row.key] = group
            elif row.subset == "all" and places.keys() == {(row.task_name, subset) for subset in subsets}:
                found[row.key] = drafter.family
    return found


def check_rows(path: Path) -> None:
    """Raise ConfigError where a leaderboard holds nothing that could be completed."""
    if not path.is_file():
        raise ConfigError(f"--leaderboard {path}: no such file: `specbench run --leaderboard {path}` makes it")
    load(path)


def add_to(path: Path, answer: Answer) -> int:
    """Give the matching rows of the file their `fairness`; returns how many there are. Raises ConfigError for none."""
    found: Mapping[str, GroupNumbers | Family] = fairness_rows(answer)

    def of(row: Row) -> GroupNumbers | Family | None:
        return found.get(row.key)

    num_rows = set_fairness(path, of)
    if not num_rows:
        raise ConfigError(f"--leaderboard {path}: got no fairness numbers: {absent(path, answer)}")
    return num_rows


def absent(path: Path, answer: Answer) -> str | None:
    """How many of the rows that have numbers the file lacks, and what brings them there; None where it has all."""
    missing = fairness_rows(answer).keys() - {row.key for row in load(path)}
    if not missing:
        return None
    runs = [str(run.path) for run in answer.common.runs if any(row.key in missing for row in run.rows)]
    how = shlex.join(["specbench", "leaderboard", "add", *runs, "--to", str(path)])
    return f"{len(missing)} rows of {', '.join(runs)} are not in it: add them with `{how}`, then repeat this command"
