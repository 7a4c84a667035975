"""What several runs have in common: a target, groups, and records of the same prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, nearest
from specbench.fairness.runs import Run
from specbench.results.row import Row
from specbench.running.records import Key


@dataclass(frozen=True)
class Common:
    """What runs have in common: their target, their groups in order, and the records that all of them hold."""

    runs: tuple[Run, ...]
    groups: dict[tuple[str, str], Row]
    keys: dict[tuple[str, str], list[Key]]  # of each group, those of the same prompt in all runs
    num_left_out: int  # records of the first run's groups that another run lacks


def common(runs: Sequence[Run], tasks: Sequence[str], subsets: Sequence[str]) -> Common:
    """The chosen tasks and subsets (all where none is named). Raises ConfigError where runs have another target, or no
    group of the same prompts."""
    first = runs[0]
    _check_target(runs)
    groups = {place: row for place, row in first.groups().items() if all(place in run.groups() for run in runs)}
    for option, place, names in (("--task", 0, tasks), ("--subset", 1, subsets)):
        known = {group[place] for group in groups}
        for name in names:
            if name not in known:
                raise ConfigError(f"{option} {name}: the runs have none: {nearest(name, known)}")
        groups = {group: row for group, row in groups.items() if not names or group[place] in names}
    keys: dict[tuple[str, str], list[Key]] = {place: [] for place in groups}
    num_left_out = 0
    for key, record in first.records.items():
        if key[:2] in groups:
            same = all(run.records.get(key, {}).get("prompt") == record["prompt"] for run in runs)
            num_left_out += not same
            keys[key[:2]] += [key] * same
    if not any(keys.values()):
        paths = ", ".join(str(run.path) for run in runs)
        raise ConfigError(f"runs {paths}: have no prompt in common: give runs of the same task and subsets")
    return Common(tuple(runs), {g: row for g, row in groups.items() if keys[g]}, keys, num_left_out)


def _check_target(runs: Sequence[Run]) -> None:
    targets: dict[Any, Path] = {}
    for run in runs:
        targets.setdefault((run.rows[0].target, run.rows[0].target_revision), run.path)
    if len(targets) > 1:
        shown = "; ".join(f"{path} has {name} ({revision})" for (name, revision), path in targets.items())
        raise ConfigError(f"runs of several targets do not compare ({shown}): give runs of one target")
