"""Two rows → what differs between them, and what of it must be the same for their numbers to be compared.

As in pyperf, results of other conditions share no table; an error names both values. Methods may differ in name,
drafter, draft length and options, since they are what is compared. Commit, command and date may differ too.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any

from specbench.core import dotted
from specbench.core.errors import ConfigError, nearest
from specbench.results.row import Row
from specbench.results.units import short

FIELDS = (
    "task", "subset", "target", "target_revision", "sampling", "dtype", "device", "attention", "engine", "served",
    "versions", "data_source", "data_revision", "shots", "chat", "seed", "n", "subsets", "repeats",
    "intervals", "signatures",
)  # fmt: skip
VERSIONS = ("torch", "transformers")  # those that decide about speed


@dataclass(frozen=True)
class FieldDifference:
    """A field with its two values. `field` is dotted where only a part of it differs: `sampling.temperature`."""

    field: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.first} ≠ {self.second}"


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], absent: Any = "–", same: Callable[[Any, Any], bool] = eq
) -> list[FieldDifference]:
    """Returns the fields of either side that differ. `absent`: the value of a field that a side does not have."""
    found = [FieldDifference(name, first.get(name, absent), second.get(name, absent)) for name in {**first, **second}]
    return [each for each in found if not same(each.first, each.second)]


def flat_fields(row: Row) -> dict[str, Any]:
    """Returns every field but the metrics, dotted where it has parts; null and true as JSON writes them."""
    found = dotted.flat(row.model_dump(mode="json", exclude={"metrics", "format"}))
    return {
        name: json.dumps(value) if value is None or isinstance(value, bool) else value for name, value in found.items()
    }


def conditions_that_differ(first: Row, second: Row, ignore: Collection[str] = ()) -> list[FieldDifference]:
    """Returns the conditions that must match and differ, in the order of FIELDS; none where the rows may be compared.

    `ignore`: fields that may differ, by their name (`versions`) or that of a part (`versions.torch`).
    """
    own, other = conditions(first), conditions(second)
    names = [name for name in own if name in other and not {name, name.partition(".")[0]} & set(ignore)]
    return [FieldDifference(name, own[name], other[name]) for name in names if own[name] != other[name]]


def conditions(row: Row) -> dict[str, Any]:
    """Returns the conditions that must match, by name, dotted where a part may differ alone. `signatures` holds
    those of the row's own scores: a score that another row lacks is compared with nothing."""
    return {name: value for field in FIELDS for name, value in _parts(field, getattr(row, field))}


def _parts(field: str, value: Any) -> list[tuple[str, Any]]:
    if field == "sampling":
        return [(f"sampling.{name}", part) for name, part in value]
    if field == "versions":
        return [(f"versions.{name}", value.get(name)) for name in VERSIONS]
    if field == "subsets":  # how many examples they have is in n
        return [("subsets", ", ".join(value))]
    if field == "signatures":
        return [(f"signatures.{name}", text) for name, text in value.items()]
    if field == "shots":  # how many there are is part of the task
        return [("shots.digest", value.digest)]
    if field == "served":  # how acceptance was told is no condition, and the engine is one of its own
        if value is None:
            return []
        load, up = value.load or "one request at a time", "one at a time" if value.turns else "all at once"
        own = {"load": f"{load}", "memory": value.memory, "caches": value.caches, "servers up": up}
        return [(f"served.{name}", each) for name, each in own.items()]
    if field == "intervals":
        return [(f"intervals.{name}", getattr(value, name)) for name in ("method", "level", "resamples")]
    return [(field, value)]


BASELINE = "ar"
IGNORABLE = ("attention", "device", "dtype", "target", "versions")
UNUSED = ("intervals", "signatures")  # how scores were computed: they are not judged; intervals are made anew


@dataclass(frozen=True)
class RowPair:
    """A row of the candidate, and the row of the baseline with the same task, subset and method."""

    baseline: Row
    candidate: Row

    @property
    def subset(self) -> str:
        return self.candidate.subset

    def rounding(self) -> list[str]:
        """Returns the ignored conditions that change how numbers are rounded. A drafter that is nearly undecided may
        then draft another token, so that counts have noise too."""
        return [each.field for each in conditions_that_differ(self.baseline, self.candidate, {"target", *UNUSED})]

    def hindrances(self, ignore: Collection[str], by_rows: bool) -> list[FieldDifference]:
        """Returns the fields that must be the same and differ: the conditions, the number of draft tokens, and the
        bridge. With other values of these acceptance and draft passes do not compare. `by_rows`: the intervals of rows
        are compared too."""
        unused = UNUSED[1:] if by_rows else UNUSED
        first, second = (
            {"num_draft_tokens": row.num_draft_tokens, "options.bridge": row.options.get("bridge")}
            for row in (self.baseline, self.candidate)
        )
        hindering = conditions_that_differ(self.baseline, self.candidate, {*ignore, *unused})
        return [*hindering, *differences(first, second)]

    def changes(self) -> list[str]:
        """Returns the changes of the method, which are what the check is for."""
        rows = (self.baseline, self.candidate)
        first, second = (
            {name: getattr(row, name) for name in ("method", "drafter", "drafter_revision")} for row in rows
        )
        found = [*differences(first, second), *differences(rows[0].options, rows[1].options, absent=None)]
        return [f"{each.field} {each.first} → {each.second}" for each in found]


@dataclass(frozen=True)
class RefusedRow:
    """A row of the candidate without a comparable row in the baseline."""

    candidate: Row
    reasons: tuple[str, ...]


def check_ignored(names: Collection[str]) -> None:
    for name in names:
        if name not in IGNORABLE:
            raise ConfigError(f"--ignore {name}: {nearest(name, IGNORABLE)}")


def pair_rows(
    baseline: Sequence[Row], candidate: Sequence[Row], ignore: Collection[str], by_rows: bool
) -> tuple[list[RowPair], list[RefusedRow], list[Row], list[Row]]:
    """Returns the pairs; rows that do not compare; rows that only the candidate has; rows that only the baseline has.

    Where a file has several rows of a task, subset and method, the nearest counts: with the fewest differences that
    matter, then with the fewest at all, then with the fewest changes of the method. Two rows that are equally near are
    refused. `by_rows`: the baseline has no records.
    """

    def distance(pair: RowPair) -> tuple[int, int, int]:
        mattering, every = (pair.hindrances(names, by_rows) for names in (ignore, ()))
        return len(mattering), len(every), len(pair.changes())

    pairs, refused, new = [], [], []
    for row in candidate:
        same = [RowPair(other, row) for other in baseline if other.names == row.names]
        if not same:
            new.append(row)
            continue
        closest, *others = sorted(same, key=distance)
        if hindering := closest.hindrances(ignore, by_rows):
            reasons = (f"{d.field}: {d.first} in the baseline, {d.second} in the candidate" for d in hindering)
            refused.append(RefusedRow(row, tuple(reasons)))
        elif others and distance(others[0]) == distance(closest):
            refused.append(RefusedRow(row, (_equally_near(closest.baseline, others[0].baseline),)))
        else:
            pairs.append(closest)
    known = {row.names for row in candidate}
    return pairs, refused, new, [row for row in baseline if row.names not in known]


def _equally_near(first: Row, second: Row) -> str:
    changes = "; ".join(RowPair(first, second).changes())
    return (
        f"two rows of the baseline are equally near, created {first.created} and {second.created}"
        f"{f' ({changes})' if changes else ''}: take one of the two out"
    )


REMEDY = "keep a file for each"
Sourced = tuple[str, Row]  # where a row is, as "board.json: rows.3"
Fact = tuple[str, str, Any]  # field, what it is of, value


def check_together(rows: Sequence[Sourced]) -> None:
    """Raises ConfigError naming the first two rows that do not go together, with the two values."""
    for problem in conflicts(rows):
        raise ConfigError(problem)


def conflicts(rows: Sequence[Sourced]) -> Iterator[str]:
    """Yields a line for each row that does not go together with one before it, with the two values."""
    seen: dict[tuple[str, str], tuple[str, Row, Any]] = {}
    for where, row in rows:
        for field, of, value in shared_values(row):
            first_where, first, known = seen.setdefault((field, of), (where, row, value))
            if known != value:
                yield (
                    f"{where} ({row.place}): {field} = {value}, but {first_where} ({first.place}) has {known}: a "
                    f"file holds rows of one {_one(field)}: {REMEDY}"
                )


def shared_values(row: Row) -> Iterator[Fact]:
    """Yields the values that all rows of a file share, or all its rows of one task, method or target."""
    yield "device", "", row.device
    yield "where methods run", "", "in servers" if row.served else "in this process"
    for name in VERSIONS:
        yield f"versions.{name}", "", row.versions.get(name)
    yield "intervals", "", row.intervals.model_dump_json()
    for field in ("task", "method"):
        name, _, version = short(getattr(row, field)).partition("@")
        yield f"{field} {name}: version", name, version
    yield "target_revision", row.target, row.target_revision
    if row.drafter is not None and row.drafter_revision is not None and "routes" not in row.options:
        yield "drafter_revision", row.drafter, row.drafter_revision
    if row.data_revision is not None and row.subset != "all":  # which has a digest of whatever subsets it is of
        yield "data_revision", f"{row.task} {row.subset} {row.data_location}", row.data_revision


def _one(field: str) -> str:
    kinds = {"device": "device", "intervals": "method of intervals", "where methods run": "kind of run"}
    return kinds.get(field, "set of versions")
