"""Two rows → what differs between them that must be the same for their numbers to be compared.

The rule is pyperf's: what was measured under other conditions stands in no common table, and whoever tries is told both
values. Methods are what is compared, so their name, drafter, draft length and options may differ; so may the commit,
the command and the date.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from specbench.results.row import Row

FIELDS = (
    "task", "subset", "target", "target_revision", "sampling", "dtype", "device", "attention", "engine", "versions",
    "data_source", "data_revision", "shots", "chat", "seed", "n", "subsets", "repeats",
    "intervals", "signatures",
)  # fmt: skip
VERSIONS = ("torch", "transformers")  # those that decide about speed


@dataclass(frozen=True)
class Difference:
    """A field with its two values. `field` is dotted where only a part of it differs: `sampling.temperature`."""

    field: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.first} ≠ {self.second}"


def differences(first: Row, second: Row, ignore: Collection[str] = ()) -> list[Difference]:
    """What differs of what must match, in the order of FIELDS; nothing where the rows may be compared.

    `ignore`: fields that may differ, by their name (`versions`) or that of a part (`versions.torch`).
    """
    mine, other = conditions(first), conditions(second)
    names = [name for name in mine if name in other and not {name, name.partition(".")[0]} & set(ignore)]
    return [Difference(name, mine[name], other[name]) for name in names if mine[name] != other[name]]


def conditions(row: Row) -> dict[str, Any]:
    """What must match, by name, dotted where a part may differ alone. Of `signatures` there are those of the row's own
    scores: a score that another row lacks is compared with nothing."""
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
