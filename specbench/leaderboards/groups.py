"""Rows → those that compare with each other: one group for each set of conditions."""

import json
from collections.abc import Sequence

from specbench.leaderboards.comparable import conditions
from specbench.leaderboards.side import Side
from specbench.results.row import Row


def grouped(sides: Sequence[Side], metric: str) -> dict[str, list[Side]]:
    """The groups by their conditions, in the order of the rows; `metric`: what ranks them."""
    groups: dict[str, list[Side]] = {}
    for side in sides:
        same = {name: value for name, value in conditions(side.row).items() if not name.startswith("signatures.")}
        same |= {f"signatures.{name}": text for name, text in computed(side.row, metric).items()}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(side)
    return groups


def computed(row: Row, metric: str) -> dict[str, str]:
    """The signatures of a table's scores: of what ranks the rows, and of their main score."""
    shown = (metric, f"{row.quality}")
    return {name: text for name, text in row.signatures.items()
            if any(each == name or each in (f"{name}_ar", f"{name}_difference") for each in shown)}  # fmt: skip
