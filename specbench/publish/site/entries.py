"""The rows of leaderboard files with their addresses, their groups and their ranks."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.results.captions import prescribed
from specbench.results.comparable import conditions
from specbench.results.comparison_input import of_subsets
from specbench.results.leaderboard import load
from specbench.results.paired import RowWithRecords
from specbench.results.ranking import SPEEDUP, Ranked, distinct_names, grouped, ranked
from specbench.results.row import Row, digest_of
from specbench.results.runs import RecordedRuns
from specbench.results.units import NULL


@dataclass(frozen=True)
class ConditionGroup:
    """Rows that compare with each other. `key`: 8 hex digits of their conditions, which links use."""

    key: str
    size: int


@dataclass(frozen=True)
class Entry:
    """A row of the site. `label`: its method, with the settings that differ within its group. `is_whole`: whether it is
    over all subsets of its task, or its task has no such rows."""

    digest: str
    side: RowWithRecords
    group: ConditionGroup
    rank: Ranked
    label: str
    is_whole: bool

    @property
    def row(self) -> Row:
        return self.side.row

    @property
    def address(self) -> str:
        """Returns the address of its page from the site's folder; the same row always has the same."""
        return f"rows/{self.digest}.html"


@dataclass(frozen=True)
class Entries:
    """The rows in the order of their groups, the best first. `warnings`: the reasons why records that are there are not
    used."""

    all: tuple[Entry, ...]
    warnings: tuple[str, ...]

    def whole(self) -> list[list[Entry]]:
        """Returns the rows over all subsets by group, without those whose α is prescribed, which compare with none."""
        groups: dict[str, list[Entry]] = {}
        for entry in self.all:
            if entry.is_whole and prescribed(entry.row) is None:
                groups.setdefault(entry.group.key, []).append(entry)
        return list(groups.values())


def read(files: Sequence[Path]) -> Entries:
    """Returns the rows of files; a row of several files is there once. Raises ConfigError for files that are no
    leaderboards, and where there are no rows."""
    runs, sides = RecordedRuns(), {}
    for file in files:
        for row in load(file):
            if (row.key, row.created) not in sides:
                sides[row.key, row.created] = runs.with_records(row, file)
    if not sides:
        raise ConfigError(
            f"{', '.join(map(str, files))}: no rows: add some with `specbench leaderboard add RUN --to FILE`"
        )
    return Entries(tuple(_entries(list(sides.values()))), tuple(runs.unread()))


def _entries(sides: Sequence[RowWithRecords]) -> list[Entry]:
    whole = {id(row) for row in of_subsets([side.row for side in sides], [])}
    found = []
    for shared, group in grouped(sides, SPEEDUP).items():
        own = ConditionGroup(hashlib.sha256(shared.encode("utf-8", "surrogatepass")).hexdigest()[:8], len(group))
        order = ranked(group, SPEEDUP)
        labels = distinct_names([each.row for each in order])
        found += [
            Entry(digest_of(row.model_dump(mode="json")), each.side, own, each, labels[row.key], id(row) in whole)
            for each in order
            for row in (each.row,)
        ]
    return found


MAX_VALUE = 40  # characters of a value


def settings_apart(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    """Returns for a row of each group the conditions that tell it from other rows of its name, as few as possible."""
    same: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        same.setdefault(name, []).append(number)
    found: list[list[str]] = [[] for _ in rows]
    for numbers in same.values():
        own = [conditions(rows[number]) for number in numbers]
        chosen: list[str] = []
        for name in dict.fromkeys(name for each in own for name in each):
            if _num_apart(own, [*chosen, name]) > _num_apart(own, chosen):
                chosen.append(name)
        for number, each in zip(numbers, own, strict=True):
            found[number] = [_words(name, each.get(name)) for name in chosen]
    return found


def _num_apart(own: Sequence[dict[str, object]], names: Sequence[str]) -> int:
    return len({repr([each.get(name) for name in names]) for each in own})  # values may be mappings


def _words(name: str, value: object) -> str:
    """Returns a condition in words, such as "temperature 0.5" or "n = 8"."""
    text = NULL if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"[:MAX_VALUE]
    return f"n = {text}" if name == "n" else f"{name.rpartition('.')[2].replace('_', ' ')} {text}"
