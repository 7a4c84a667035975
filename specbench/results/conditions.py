"""The conditions of rows: which fields differ between two rows, and which must be equal to compare their numbers.

As in pyperf, results under different conditions share no table, and an error names both values. Methods may differ in
name, drafter, draft length and options, since these are compared. Commit, command and date may differ too.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from typing import Any

from specbench.core import dotted
from specbench.core.errors import ConfigError
from specbench.models.machine import LLAMA_CPP, environment
from specbench.results.leaderboard import check_writable, load
from specbench.results.metric_format import without_digest
from specbench.results.row import Row

FIELDS = (
    "task", "subset", "target", "target_revision", "sampling", "dtype", "device", "attention", "drafter_passes",
    "products", "engine", "pass_width", "served", "versions", "data_source", "data_revision", "shots", "chat",
    "template_date", "system", "seed", "n", "subsets", "repeats", "intervals", "signatures",
)  # fmt: skip
VERSIONS = ("torch", "transformers")  # packages whose version changes speed


@dataclass(frozen=True)
class FieldDifference:
    """A field with its two values. A part of a field has a dotted name: `sampling.temperature`."""

    field: str
    first: object
    second: object

    def __str__(self) -> str:
        return f"{self.field}: {self.first} ≠ {self.second}"


def differences(
    first: Mapping[str, object],
    second: Mapping[str, object],
    absent: object = "–",
    same: Callable[[Any, Any], bool] = eq,
) -> list[FieldDifference]:
    """Returns the fields that differ. `absent`: the value of a field that a side lacks. `same`: compares two values."""
    found = [FieldDifference(name, first.get(name, absent), second.get(name, absent)) for name in {**first, **second}]
    return [each for each in found if not same(each.first, each.second)]


def flat_fields(row: Row) -> dict[str, object]:
    """Returns every field except the metrics, with dotted names for parts, and null and booleans as JSON text."""
    found = dotted.flat(row.model_dump(mode="json", exclude={"metrics", "format"}))
    return {
        name: json.dumps(value) if value is None or isinstance(value, bool) else value for name, value in found.items()
    }


def conditions_that_differ(first: Row, second: Row, ignore: Collection[str] = ()) -> list[FieldDifference]:
    """Returns the conditions that must match but differ, in the order of FIELDS; an empty list if the rows compare.
    `ignore`: names of fields (`versions`) or parts (`versions.torch`) that may differ."""
    own, other = conditions(first), conditions(second)
    names = [name for name in own if name in other and not {name, name.partition(".")[0]} & set(ignore)]
    return [FieldDifference(name, own[name], other[name]) for name in names if own[name] != other[name]]


def conditions(row: Row) -> dict[str, object]:
    """Returns the conditions that must match, by name. Parts that may differ on their own have dotted names."""
    parts: dict[str, Mapping[str, object]] = {
        "sampling": dict(row.sampling),
        "versions": {name: row.versions.get(name) for name in versions_of(row)},
        "signatures": row.signatures,
        "shots": {"digest": row.shots.digest},  # their number is part of the task
        "served": {},
        "intervals": dict(row.intervals),
    }
    if row.served is not None:  # the source of acceptance is not a condition, and the engine has its own field
        load, up = row.served.load or "one request at a time", "one at a time" if row.served.turns else "all at once"
        kept = {"memory": row.served.memory, "caches": row.served.caches}
        parts["served"] = {"load": f"{load}", **kept, "servers up": up}
    found: dict[str, object] = {}
    for field in FIELDS:
        named = {field: getattr(row, field)}
        found |= {f"{field}.{name}": part for name, part in parts[field].items()} if field in parts else named
    found["subsets"] = ", ".join(row.subsets)  # their examples are in n
    if row.dtype.endswith(")"):  # "int8 (bfloat16)" has kernels of its own: the products are those of the drafter
        found["products"] = None
    for name, revision in row.options.get("code", {}).items():  # other code of a method is what is compared
        if name.startswith(("scorer ", "reader ")):
            found[f"code.{name}"] = revision
    return found


def versions_of(row: Row) -> tuple[str, ...]:
    """Returns the packages whose version changes the speed of a row."""
    return (*VERSIONS, LLAMA_CPP) if "llama.cpp" in row.engine and row.served is None else VERSIONS


BASELINE = "ar"
IGNORABLE = ("attention", "device", "dtype", "target", "versions")
# A check computes intervals anew. It compares no means of scores, but tells scores that changed beside equal tokens.
UNUSED = ("intervals", "signatures", "code")


@dataclass(frozen=True)
class RowPair:
    """A row of the candidate, and the row of the baseline with the same task, subset and method."""

    baseline: Row
    candidate: Row

    @property
    def subset(self) -> str:
        return self.candidate.subset

    def rounding(self) -> list[str]:
        """Returns the ignored conditions that change rounding. A drafter that is nearly undecided may then draft
        another token, so that counts have noise too."""
        return [each.field for each in conditions_that_differ(self.baseline, self.candidate, {"target", *UNUSED})]

    def hindrances(self, ignore: Collection[str], by_rows: bool) -> list[FieldDifference]:
        """Returns the fields that must match but differ: the conditions, and the number of draft tokens and the bridge,
        without which acceptance and draft passes do not compare. `by_rows`: the intervals of rows must match too."""
        unused = UNUSED[1:] if by_rows else UNUSED
        first, second = (
            {"num_draft_tokens": row.num_draft_tokens, "options.bridge": row.options.get("bridge")}
            for row in (self.baseline, self.candidate)
        )
        hindering = conditions_that_differ(self.baseline, self.candidate, {*ignore, *unused})
        return [*hindering, *differences(first, second)]

    def changes(self) -> list[str]:
        rows = (self.baseline, self.candidate)
        first, second = (
            {name: getattr(row, name) for name in ("method", "drafter", "drafter_revision")} for row in rows
        )
        before, now = (dotted.flat(row.options) for row in rows)
        found = [*differences(first, second), *differences(before, now, absent=None)]
        return [f"{each.field} {each.first} → {each.second}" for each in found]


def pair_rows(
    baseline: Sequence[Row], candidate: Sequence[Row], ignore: Collection[str], by_rows: bool
) -> tuple[list[RowPair], list[tuple[Row, list[str]]], list[Row], list[Row]]:
    """Returns the pairs, the rows of the candidate that are refused with the reasons, the rows that only the candidate
    has, and those that only the baseline has.

    If the baseline has several rows of a task, subset and method, the nearest is taken: it has the fewest fields that
    must match but differ, then the fewest if none is ignored, then the fewest changes of the method. A row with two
    equally near ones is refused. `by_rows`: the baseline has no records.
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
            reasons = [f"{d.field}: {d.first} in the baseline, {d.second} in the candidate" for d in hindering]
            refused.append((row, reasons))
        elif others and distance(others[0]) == distance(closest):
            near = RowPair(closest.baseline, others[0].baseline)
            changes = f" ({'; '.join(near.changes())})" if near.changes() else ""
            dates = f"created {near.baseline.created} and {near.candidate.created}{changes}"
            refused.append((row, [f"two rows of the baseline match equally well, {dates}: remove one of the two"]))
        else:
            pairs.append(closest)
    known = {row.names for row in candidate}
    return pairs, refused, new, [row for row in baseline if row.names not in known]


KINDS = {"device": "device", "intervals": "method of intervals", "where methods run": "kind of run"}
Sourced = tuple[str, Row]  # the place of a row, such as "board.json: rows.3", and the row


def check_together(rows: Sequence[Sourced]) -> None:
    """Raises ConfigError if two rows may not share a file, with the two values that differ."""
    for problem in conflicts(rows):
        raise ConfigError(problem)


def conflicts(rows: Sequence[Sourced]) -> Iterator[str]:
    """Yields a line for each row that may not share a file with an earlier one, with the two values that differ."""
    seen: dict[tuple[str, str], tuple[str, Row, Any]] = {}
    for where, row in rows:
        for field, scope, value in shared_values(row):
            first_where, first, known = seen.setdefault((field, scope), (where, row, value))
            if known != value:
                yield (
                    f"{where} ({row.place}): {field} = {value}, but {first_where} ({first.place}) has {known}: a "
                    f"file holds rows of one {KINDS.get(field, 'set of versions')}: keep a file for each"
                )


def shared_values(row: Row) -> Iterator[tuple[str, str, Any]]:
    """Yields field, scope and value of what all rows of a file must share. The scope is "" for all rows, or the task,
    method, model or data to which the value belongs."""
    yield "device", "", row.device
    yield "where methods run", "", "in servers" if row.served else "in this process"
    for name in versions_of(row):
        yield f"versions.{name}", "", row.versions.get(name)
    yield "intervals", "", row.intervals.model_dump_json()
    for field in ("task", "method"):
        name, _, version = without_digest(getattr(row, field)).partition("@")
        yield f"{field} {name}: version", name, version
    yield "target_revision", row.target, row.target_revision
    if row.drafter is not None and row.drafter_revision is not None and "routes" not in row.options:
        yield "drafter_revision", row.drafter, row.drafter_revision
    if row.data_revision is not None and row.subset != "all":  # the revision of "all" depends on its subsets
        yield "data_revision", f"{row.task} {row.subset} {row.data_location}", row.data_revision


def check_accepts_rows(file: Path, device: str) -> None:
    """Raises ConfigError for a file that cannot be written, is broken, or has rows of another machine or version.
    `device`: see `environment`. Set the number of threads first, since the name of a machine includes it."""
    check_writable(file)
    if not file.exists():
        return
    here = environment(device, "", "")
    check_rows(file, here["device"], here["versions"])


def check_rows(file: Path, device: str, versions: Mapping[str, str | None]) -> None:
    """Raises ConfigError for a file with rows of another machine or other versions. `device`: the name in rows."""
    now = {"device": device, **{f"versions.{name}": versions.get(name) for name in VERSIONS}}
    for number, row in enumerate(load(file)):
        known = conditions(row)
        for field, value in now.items():
            if known[field] != value:
                raise ConfigError(
                    f"--leaderboard {file}: rows.{number} has {field} = {known[field]}, and this is {value}: a file "
                    "holds rows of one machine and one set of versions; nothing was measured: name another file"
                )
