"""Two rows → what differs between them that must be the same for their numbers to be compared.

As in pyperf, results of other conditions share no table; an error names both values. Methods may differ in name,
drafter, draft length and options, since they are what is compared. Commit, command and date may differ too.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.core.errors import ConfigError
from specbench.results.row import Row
from specbench.results.units import short

FIELDS = (
    "task", "subset", "target", "target_revision", "sampling", "dtype", "device", "attention", "engine", "versions",
    "data_source", "data_revision", "shots", "chat", "seed", "n", "subsets", "repeats",
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


def conditions_that_differ(first: Row, second: Row, ignore: Collection[str] = ()) -> list[FieldDifference]:
    """Returns the conditions that must match and differ, in the order of FIELDS; none where the rows may be compared.

    `ignore`: fields that may differ, by their name (`versions`) or that of a part (`versions.torch`).
    """
    mine, other = conditions(first), conditions(second)
    names = [name for name in mine if name in other and not {name, name.partition(".")[0]} & set(ignore)]
    return [FieldDifference(name, mine[name], other[name]) for name in names if mine[name] != other[name]]


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
    if field == "intervals":
        return [(f"intervals.{name}", getattr(value, name)) for name in ("method", "level", "resamples")]
    return [(field, value)]


REMEDY = "keep a file for each"
Sourced = tuple[str, Row]  # where a row is, as "board.json: rows.3"
Fact = tuple[str, str, Any]  # field, what it is of, value


def check_together(rows: Sequence[Sourced]) -> None:
    """Raise ConfigError naming the first two rows that do not go together, with the two values."""
    seen: dict[tuple[str, str], tuple[str, Row, Any]] = {}
    for where, row in rows:
        for field, of, value in facts(row):
            first_where, first, known = seen.setdefault((field, of), (where, row, value))
            if known != value:
                raise ConfigError(
                    f"{where} ({row.place}): {field} = {value}, but {first_where} ({first.place}) has {known}: rows of "
                    f"different {_plural(field)} do not go into one file: {REMEDY}"
                )


def facts(row: Row) -> Iterator[Fact]:
    """Yields the values that all rows of a file share, or all its rows of one task, method or target."""
    yield "device", "", row.device
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


def _plural(field: str) -> str:
    return {"device": "hardware", "intervals": "methods of intervals"}.get(field, "versions")
