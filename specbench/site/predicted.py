"""Predicted beside measured speed-up: what the acceptance rate promised, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.fairness.runs import method_name, task_name
from specbench.results.bootstrap import Metric
from specbench.results.cells import number, with_interval
from specbench.site.entries import Entries, Entry
from specbench.site.labels import Box, Label, placed
from specbench.site.scale import Scale, scale
from specbench.site.settings import settings_apart

MOST_NAMED = 40  # points that have their names beside them
FRAME: Box = (56.0, 16.0, 660.0, 460.0)


@dataclass(frozen=True)
class Point:
    """`share`: measured ÷ predicted."""

    entry: Entry
    name: str
    x: float
    y: float
    along: tuple[float, float] | None
    predicted: str
    speedup: str
    share: float
    label: Label | None


@dataclass(frozen=True)
class Predicted:
    """`num_left_out`: rows over all subsets for which there is no prediction, or no measured speed-up."""

    points: tuple[Point, ...]
    x: Scale
    y: Scale
    num_left_out: int
    num_reached: int


def predicted(entries: Entries) -> Predicted | None:
    whole = [entry for group in entries.whole() for entry in group]
    known = [
        (entry, predicted, speedup)
        for entry in whole
        if (predicted := entry.row.metrics.get("speedup_expected", Metric())).value is not None
        and (speedup := entry.row.metrics.get("speedup", Metric())).value is not None
    ]
    if not known:
        return None
    left, top, right, bottom = FRAME
    ends = [0.0, *(end for _, expected, speedup in known
                   for end in (expected.value, speedup.value, speedup.high) if end is not None)]  # fmt: skip
    x, y = scale(ends, left, right), scale(ends, bottom, top)
    names = _names([entry for entry, _, _ in known])
    places = [(x(expected.value or 0.0), y(speedup.value or 0.0)) for _, expected, speedup in known]
    named = [(*place, name) for place, name in zip(places, names, strict=True)][:MOST_NAMED]
    labels = [*placed(named, FRAME), *[None] * (len(known) - len(named))]
    points = [
        Point(
            entry, name, *place,
            None if speedup.low is None or speedup.high is None else (y(speedup.low), y(speedup.high)),
            number(expected, 2), with_interval(speedup), (speedup.value or 0.0) / (expected.value or 1.0), label,
        )
        for (entry, expected, speedup), name, place, label in zip(known, names, places, labels, strict=True)
    ]  # fmt: skip
    left_out = sum(method_name(entry.row) != "ar" for entry in whole) - len(known)
    return Predicted(tuple(points), x, y, max(0, left_out), sum(point.share >= 1 for point in points))


def _names(entries: Sequence[Entry]) -> list[str]:
    """Task and method, and what tells rows of the same apart."""
    names = [f"{task_name(entry.row)} · {entry.label}" for entry in entries]
    told = settings_apart([entry.row for entry in entries], names)
    return [", ".join([name, *own]) for name, own in zip(names, told, strict=True)]
