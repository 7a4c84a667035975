"""Which rows may stand in one file: of one machine, one set of versions, and one version of every task and method.

Rows of several tasks, targets, temperatures or numbers of examples may: `show` gives each set of conditions a table of
its own. A file of several machines would invite to compare what cannot be compared.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from specbench.errors import ConfigError
from specbench.leaderboards.comparable import VERSIONS
from specbench.results.cells import short
from specbench.results.row import Row

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
    """What all rows of a file share; of tasks, methods and targets, what all rows of one of them share."""
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
