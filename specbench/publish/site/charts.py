"""The scatter plots of a site: quality against speed with the Pareto front, measured against predicted speed-ups."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from specbench.publish.site.entries import Entries, SiteRow, by_machine, distinguishing_settings
from specbench.results.metric_format import bounds_of, metric_of, number, with_interval
from specbench.results.row import ALL, Row
from specbench.statistics.bootstrap import Bounds, Estimate

STEPS = (1, 2, 2.5, 5, 10)
LARGEST = 1e300  # a value beyond it lies at the end of its axis, whose length must be a number, too


class AxisTick(NamedTuple):
    """A mark on an axis. `place`: in units of the picture."""

    place: float
    text: str


@dataclass(frozen=True)
class Scale:
    """A linear scale from `low` at `start` to `high` at `end`, in units of the picture."""

    low: float
    high: float
    start: float
    end: float
    step: float

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return round(self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[AxisTick]:
        digits = max(0, -math.floor(math.log10(self.step) + 1e-9))
        digits += self.step * 10**digits % 1 > 1e-9
        count = round((self.high - self.low) / self.step)
        values = [self.low + place * self.step for place in range(count + 1)]
        return [AxisTick(self(value), number(value, digits)) for value in values]


def scale(
    values: Iterable[float], start: float, end: float, *, most_ticks: int = 6, bounds: Bounds | None = None
) -> Scale:
    """Returns a scale with round ends around all values, widened if they are equal. `bounds`: of possible values."""
    found = [_within(value) for value in values]
    low, high = min(found), max(found)
    if high - low < 1e-9 * max(1.0, abs(low), abs(high)):
        low, high = low - (abs(low) or 10) / 10, high + (abs(high) or 10) / 10
    if bounds is not None:
        low, high = min(max(low, bounds[0]), min(found)), max(min(high, bounds[1]), max(found))
    rough = (high - low) / most_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in STEPS if power * factor >= rough * 0.999)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end, step)


def _within(value: float) -> float:
    return min(max(value, -LARGEST), LARGEST)


Place = tuple[float, float]
FRAME = (56.0, 16.0, 660.0, 340.0)  # left, top, right and bottom of a plot, in units of the picture


class Axis(NamedTuple):
    """The values of one axis by point. `label`: the text beside it. `digits`: of a value as text."""

    label: str
    metrics: Sequence[Estimate]
    scale: Scale
    digits: int = 2

    def place(self, point: int) -> float:
        return self.scale(self.metrics[point].value or 0.0)

    def text(self, point: int) -> str:
        return with_interval(self.metrics[point], self.digits)

    def interval(self, point: int) -> tuple[float, float] | None:
        metric = self.metrics[point]
        return None if metric.low is None or metric.high is None else (self.scale(metric.low), self.scale(metric.high))


class PlotPoint(NamedTuple):
    """A row in a plot. `x`, `y`: its place. `x_interval`, `y_interval`: the ends of the intervals, or None. `x_text`,
    `y_text`: its values as text. `note`: the last cell of its line in the table. `is_best`: whether it is on the Pareto
    front."""

    entry: SiteRow
    name: str
    x: float
    y: float
    x_interval: tuple[float, float] | None
    y_interval: tuple[float, float] | None
    x_text: str
    y_text: str
    note: str
    is_best: bool


@dataclass(frozen=True)
class ScatterPlot:
    """Rows by two metrics. `line`: the dashed line, from which a row gains. `front`: the points of the Pareto front.
    `sweeps`: for each method its points at several thresholds. `caption`, `note`: of the table of the points."""

    title: str
    points: tuple[PlotPoint, ...]
    x: Axis
    y: Axis
    line: tuple[Place, Place]
    caption: str
    note: str
    front: tuple[Place, ...] = ()
    sweeps: tuple[tuple[Place, ...], ...] = ()

    @property
    def steps(self) -> list[Place]:
        """The corners of the front's line: the best score at each speed-up."""
        corners = [(before[0], after[1]) for before, after in pairwise(self.front)]
        places = (place for each in zip(corners, self.front[1:], strict=True) for place in each)
        return [*self.front[:1], *places]

    @property
    def row(self) -> Row:
        return self.points[0].entry.row


def plot_points(
    group: Sequence[SiteRow], names: Sequence[str], x: Axis, y: Axis, notes: Sequence[str], best: Collection[int] = ()
) -> tuple[PlotPoint, ...]:
    return tuple(
        PlotPoint(
            entry, name, x.place(n), y.place(n), x.interval(n), y.interval(n), x.text(n), y.text(n), note, n in best
        )
        for n, (entry, name, note) in enumerate(zip(group, names, notes, strict=True))
    )  # fmt: skip


def quality_speed_plots(entries: Entries) -> list[ScatterPlot]:
    """Returns a plot of speed-up (x) and main score (y) for each group with at least two rows that have both."""
    left, top, right, bottom = FRAME
    groups = [[each for each in whole if _has(each.row, "speedup", each.row.quality)] for whole in entries.whole()]
    groups = [group for group in groups if len(group) > 1]
    rows = [group[0].row for group in groups]
    titles = [row.task_name if row.subset == ALL else f"{row.task_name} · {row.subset}" for row in rows]
    plots = []
    for group, title, own in zip(groups, titles, distinguishing_settings(rows, titles), strict=True):
        unit, bounds = metric_of(group[0].row.quality), bounds_of(group[0].row.quality or "")
        speedups = [entry.row.metric("speedup") for entry in group]
        scores = [
            Estimate(**{name: None if value is None else _within(value * unit.factor) for name, value in metric})
            for metric in (entry.row.metric(entry.row.quality) for entry in group)
        ]
        scaled = None if bounds is None else (bounds[0] * unit.factor, bounds[1] * unit.factor)
        x = Axis("speed-up", speedups, scale([1.0, *_ends(speedups)], left, right))
        y = Axis(unit.label, scores, scale(_ends(scores), bottom, top, bounds=scaled), unit.digits)
        best = front([(s.value or 0.0, q.value or 0.0) for s, q in zip(speedups, scores, strict=True)])
        notes = ["on it" if n in best else "" for n in range(len(group))]
        points = plot_points(group, [entry.label for entry in group], x, y, notes, best)
        # The places of each method with several thresholds, in the order of the thresholds.
        by_threshold: dict[str, list[tuple[float, Place]]] = {}
        for point in points:
            row = point.entry.row
            rule = row.options.get("verification")
            threshold = rule.get("threshold") if isinstance(rule, Mapping) else None
            if isinstance(threshold, int | float):
                swept = by_threshold.setdefault(f"{row.method} {row.num_draft_tokens}", [])
                swept.append((threshold, (point.x, point.y)))
        sweeps = tuple(tuple(place for _, place in sorted(each)) for each in by_threshold.values() if len(each) > 1)
        corners = tuple(sorted((point.x, point.y) for point in points if point.is_best))
        title = ", ".join([title, *own])
        one = x.scale(1.0)
        line = (one, top), (one, bottom)
        caption = f"{title}: the same numbers"
        plots.append(ScatterPlot(title, points, x, y, line, caption, "front", corners, sweeps))
    return plots


def front(points: Sequence[tuple[float, ...]]) -> set[int]:
    """Returns the numbers of the points on the Pareto front, where more is better: no other point is at least as good
    in all values and better in one."""
    return {
        place for place, own in enumerate(points)
        if not any(
            other != own and all(theirs >= mine for theirs, mine in zip(other, own, strict=True)) for other in points
        )
    }  # fmt: skip


def _has(row: Row, *names: str | None) -> bool:
    return all(row.metric(name).value is not None for name in names)


def _ends(metrics: Sequence[Estimate]) -> list[float]:
    return [end for metric in metrics for end in (metric.value, metric.low, metric.high) if end is not None]


def prediction_plots(entries: Entries) -> list[ScatterPlot]:
    """Returns for each machine a plot of the predicted (x) and the measured (y) speed-ups of all rows with both."""
    known = [each for whole in entries.whole() for each in whole if _has(each.row, "speedup_expected", "speedup")]
    machines = by_machine(known)
    title = "Measured and predicted speed-up"
    return [
        _prediction_plot(same, title if len(machines) == 1 else f"{title}, {name}") for name, same in machines.items()
    ]


def _prediction_plot(known: Sequence[SiteRow], title: str) -> ScatterPlot:
    predicted, measured = ([entry.row.metric(name) for entry in known] for name in ("speedup_expected", "speedup"))
    left, top, right, bottom = FRAME
    ends = [0.0, *_ends([*predicted, *measured])]
    x = Axis("predicted speed-up", [Estimate(value=each.value) for each in predicted], scale(ends, left, right))
    y = Axis("measured speed-up", measured, scale(ends, bottom, top))
    names = [f"{entry.row.task_name} · {entry.label}" for entry in known]
    settings = distinguishing_settings([entry.row for entry in known], names)
    names = [", ".join([name, *own]) for name, own in zip(names, settings, strict=True)]
    ratios = [(own.value or 0.0) / (asked.value or 1.0) for own, asked in zip(measured, predicted, strict=True)]
    points = plot_points(known, names, x, y, [number(ratio, 2) for ratio in ratios])
    caption = (
        f"{sum(ratio >= 1 for ratio in ratios)} of {len(known)} rows reached the prediction; ratio: measured ÷ "
        "predicted"
    )
    diagonal = (left, bottom), (right, top)
    return ScatterPlot(title, points, x, y, diagonal, caption, "ratio")
