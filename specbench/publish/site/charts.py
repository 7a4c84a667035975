"""The pictures of a site: scales and labels, bars of subsets, plots of quality and speed with their Pareto fronts, and
plots of predicted and measured speed-ups."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from specbench.publish.site.entries import Entries, SiteRow, distinguishing_settings
from specbench.results.metric_format import bounds_of, metric_of, number, with_interval
from specbench.results.row import ALL, Row
from specbench.statistics.bootstrap import Bounds, Estimate

Box = tuple[float, float, float, float]  # left, top, right, bottom
HEIGHT, PER_CHARACTER, GAP = 13.0, 6.7, 7.0


class Label(NamedTuple):
    """The place of a name in a plot. `x`, `y`: the anchor on the baseline of the text."""

    x: float
    y: float
    anchor: str


def place_labels(
    points: Sequence[tuple[float, float, str]], frame: Box, lines: Sequence[Box] = ()
) -> list[Label | None]:
    """Returns for each point (x, y, name) the first free place around it, where the name covers neither a point nor
    another name; None without a name or a free place. `lines`: thin boxes, which a name covers only if no other place
    is free."""
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y, _ in points]
    found: list[Label | None] = []
    for x, y, name in points:
        width = PER_CHARACTER * len(name)
        places = [
            ("start", x + GAP, y + 4), ("end", x - GAP, y + 4), ("middle", x, y - GAP - 2), ("middle", x, y + GAP + 9),
            ("start", x + GAP, y - 8), ("start", x + GAP, y + 16), ("end", x - GAP, y - 8), ("end", x - GAP, y + 16),
        ]  # fmt: skip
        free: list[tuple[int, int, Box, Label]] = []
        for anchor, left, base in places if name else []:
            start = left - {"start": 0, "middle": width / 2, "end": width}[anchor]
            box = (start, base - HEIGHT + 3, start + width, base + 3)
            is_inside = frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]
            if is_inside and not any(_overlap(box, other) for other in taken):
                covered = sum(_overlap(box, line) for line in lines)
                free.append((covered, len(free), box, Label(round(left, 1), round(base, 1), anchor)))
        best = min(free, default=None)
        taken += [] if best is None else [best[2]]
        found.append(None if best is None else best[3])
    return found


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


STEPS = (1, 2, 2.5, 5, 10)


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
        values = [self.low + number * self.step for number in range(count + 1)]
        return [AxisTick(self(value), f"{value:.{digits}f}") for value in values]


def scale(
    values: Iterable[float], start: float, end: float, *, most_ticks: int = 6, bounds: Bounds | None = None
) -> Scale:
    """Returns a scale with round ends around all values, widened if they are equal. `bounds`: of possible values."""
    found = list(values)
    low, high = min(found), max(found)
    if high - low < 1e-9:
        low, high = low - (abs(low) or 10) / 10, high + (abs(high) or 10) / 10
    if bounds is not None:
        low, high = min(max(low, bounds[0]), min(found)), max(min(high, bounds[1]), max(found))
    rough = (high - low) / most_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in STEPS if power * factor >= rough * 0.999)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end, step)


LABELS, WIDTH, LINE = 88.0, 620.0, 26.0  # width of the names; width of the picture; height of a bar and its gap


class Bar(NamedTuple):
    """A bar. `y`: its upper edge. `end`, `low`, `high`: places on the x axis; None without an interval."""

    entry: SiteRow
    y: float
    end: float
    low: float | None
    high: float | None
    speedup: str
    acceptance: str


class BarChart(NamedTuple):
    """Speed-ups of the subsets of a task. `one`: the place of a speed-up of 1."""

    bars: tuple[Bar, ...]
    scale: Scale
    one: float
    height: float


def bars_of(family: Sequence[SiteRow]) -> BarChart | None:
    """Returns the bars of the subsets; None for fewer than two speed-ups, and for the baseline."""
    known = [
        (entry, entry.row.metric("speedup"))
        for entry in family if _has_values(entry.row, "speedup") and not entry.row.is_baseline
    ]  # fmt: skip
    if len(known) < 2:
        return None
    x = scale([0.0, 1.0, *_ends([metric for _, metric in known])], LABELS, WIDTH - 12)
    bars = [
        Bar(
            entry, 6 + LINE * place, x(metric.value or 0.0),
            None if metric.low is None else x(metric.low), None if metric.high is None else x(metric.high),
            with_interval(metric), number(entry.row.metric("acceptance_rate"), 3),
        )
        for place, (entry, metric) in enumerate(known)
    ]  # fmt: skip
    return BarChart(tuple(bars), x, x(1.0), 6 + LINE * len(known))


MAX_NAMES = 40  # points of one picture with a name
FRAME: Box = (56.0, 16.0, 660.0, 340.0)


class PlotPoint(NamedTuple):
    """A row in a plot. `x`, `y`: its place. `x_interval`, `y_interval`: the ends of the intervals, or None. `x_text`,
    `y_text`: its values as text. `ratio`: the y value ÷ the x value. `is_best`: whether it is on the Pareto front."""

    entry: SiteRow
    name: str
    x: float
    y: float
    x_interval: tuple[float, float] | None
    y_interval: tuple[float, float] | None
    x_text: str
    y_text: str
    ratio: float
    is_best: bool
    label: Label | None


class PlotAxis(NamedTuple):
    """The values of one axis by point. `text`: formats a value."""

    metrics: Sequence[Estimate]
    scale: Scale
    text: Callable[[Estimate], str] = with_interval

    def interval(self, point: int) -> tuple[float, float] | None:
        metric = self.metrics[point]
        return None if metric.low is None or metric.high is None else (self.scale(metric.low), self.scale(metric.high))


def plot_points(
    group: Sequence[SiteRow], names: Sequence[str], x: PlotAxis, y: PlotAxis, frame: Box, best: Collection[int] = (),
    lines: Sequence[Box] = (),
) -> list[PlotPoint]:  # fmt: skip
    """Returns the points of rows. MAX_NAMES of them get a name, those on the front first. `lines`: lines of the
    picture, which names avoid as they avoid intervals."""
    values = [(first.value or 0.0, second.value or 0.0) for first, second in zip(x.metrics, y.metrics, strict=True)]
    places = [(x.scale(first), y.scale(second)) for first, second in values]
    order = sorted(range(len(group)), key=lambda number: number not in best)
    named = [(*places[n], names[n] if place < MAX_NAMES else "") for place, n in enumerate(order)]
    whiskers: list[Box] = []  # the intervals as thin boxes
    for n, (left, top) in enumerate(places):
        if (ends := x.interval(n)) is not None:
            whiskers.append((min(ends), top - 0.5, max(ends), top + 0.5))
        if (ends := y.interval(n)) is not None:
            whiskers.append((left - 0.5, min(ends), left + 0.5, max(ends)))
    labels = dict(zip(order, place_labels(named, frame, [*lines, *whiskers]), strict=True))
    return [
        PlotPoint(
            entry, names[n], *places[n], x.interval(n), y.interval(n), x.text(x.metrics[n]), y.text(y.metrics[n]),
            values[n][1] / (values[n][0] or 1.0), n in best, labels.get(n),
        )
        for n, entry in enumerate(group)
    ]  # fmt: skip


@dataclass(frozen=True)
class QualitySpeedPlot:
    """The rows of a group by speed-up (x) and main score (y). `front`: the points of the Pareto front. `sweeps`: for
    each method its points at several thresholds. `one`: the place of a speed-up of 1."""

    title: str
    unit: str
    points: tuple[PlotPoint, ...]
    front: tuple[tuple[float, float], ...]
    sweeps: tuple[tuple[tuple[float, float], ...], ...]
    x: Scale
    y: Scale
    one: float

    @property
    def steps(self) -> list[tuple[float, float]]:
        """The corners of the front's line: the best score at each speed-up."""
        corners = [(before[0], after[1]) for before, after in pairwise(self.front)]
        return [self.front[0], *(place for each in zip(corners, self.front[1:], strict=True) for place in each)]

    @property
    def row(self) -> Row:
        return self.points[0].entry.row

    @property
    def best(self) -> list[PlotPoint]:
        return [point for point in self.points if point.is_best]


def quality_speed_plots(entries: Entries) -> list[QualitySpeedPlot]:
    """Returns a plot for each group with at least two rows that have a speed-up and a score."""
    left, top, right, bottom = FRAME
    plots = []
    for whole in entries.whole():
        group = [each for each in whole if _has_values(each.row, "speedup", each.row.quality)]
        if len(group) < 2:
            continue
        row = group[0].row
        unit, bounds = metric_of(row.quality), bounds_of(row.quality or "")
        speedups = [entry.row.metric("speedup") for entry in group]
        scores = [
            Estimate(**{name: None if value is None else value * unit.factor for name, value in metric})
            for metric in (entry.row.metric(entry.row.quality) for entry in group)
        ]
        scaled = None if bounds is None else (bounds[0] * unit.factor, bounds[1] * unit.factor)
        x = PlotAxis(speedups, scale([1.0, *_ends(speedups)], left, right))
        y_scale = scale(_ends(scores), bottom, top, bounds=scaled)
        y = PlotAxis(scores, y_scale, partial(with_interval, digits=unit.digits))
        best = front([(s.value or 0.0, q.value or 0.0) for s, q in zip(speedups, scores, strict=True)])
        names = [entry.label.replace("threshold=", "T = ") for entry in group]
        one = x.scale(1.0)
        points = plot_points(group, names, x, y, FRAME, best, [(one, top, one, bottom)])
        # The places of each method with several thresholds, in the order of the thresholds.
        by_threshold: dict[str, list[tuple[float, tuple[float, float]]]] = {}
        for point in points:
            own = point.entry.row
            rule = own.options.get("verification")
            threshold = rule.get("threshold") if isinstance(rule, Mapping) else None
            if isinstance(threshold, int | float):
                place = threshold, (point.x, point.y)
                by_threshold.setdefault(f"{own.method} {own.num_draft_tokens}", []).append(place)
        sweeps = (tuple(place for _, place in sorted(swept)) for swept in by_threshold.values() if len(swept) > 1)
        title = row.task_name if row.subset == ALL else f"{row.task_name} · {row.subset}"
        corners = tuple(sorted((point.x, point.y) for point in points if point.is_best))
        plots.append(QualitySpeedPlot(title, unit.label, tuple(points), corners, tuple(sweeps), x.scale, y.scale, one))
    settings = distinguishing_settings([plot.row for plot in plots], [plot.title for plot in plots])
    return [replace(plot, title=", ".join([plot.title, *own])) for plot, own in zip(plots, settings, strict=True)]


def front(values: Sequence[tuple[float, float]]) -> set[int]:
    """Returns the numbers of the points on the Pareto front: no other point is at least as good in both values and
    better in one."""
    best: set[int] = set()
    highest = float("-inf")
    for place in sorted(range(len(values)), key=lambda each: (-values[each][0], -values[each][1])):
        ties = any(values[place] == values[other] for other in best)
        if values[place][1] > highest or ties:
            best.add(place)
            highest = max(highest, values[place][1])
    return best


def _has_values(row: Row, *names: str | None) -> bool:
    return all(row.metric(name).value is not None for name in names)


def _ends(metrics: Sequence[Estimate]) -> list[float]:
    return [end for metric in metrics for end in (metric.value, metric.low, metric.high) if end is not None]


PREDICTED_FRAME: Box = (56.0, 16.0, 660.0, 460.0)


@dataclass(frozen=True)
class PredictionPlot:
    """Predicted (x) and measured (y) speed-ups. `num_left_out`: `all` rows that lack one of the two.
    `num_reached`: rows that reach the prediction."""

    points: tuple[PlotPoint, ...]
    x: Scale
    y: Scale
    num_left_out: int
    num_reached: int


def prediction_plot(entries: Entries) -> PredictionPlot | None:
    """Returns the plot of all rows with both speed-ups; None without any."""
    whole = [entry for group in entries.whole() for entry in group]
    known = [entry for entry in whole if _has_values(entry.row, "speedup_expected", "speedup")]
    if not known:
        return None
    predicted, measured = ([entry.row.metric(name) for entry in known] for name in ("speedup_expected", "speedup"))
    left, top, right, bottom = PREDICTED_FRAME
    ends = [each.value for each in predicted] + [end for each in measured for end in (each.value, each.high)]
    every = [0.0, *(end for end in ends if end is not None)]
    x = PlotAxis(predicted, scale(every, left, right), partial(number, digits=2))
    y = PlotAxis(measured, scale(every, bottom, top))
    names = [f"{entry.row.task_name} · {entry.label}" for entry in known]
    settings = distinguishing_settings([entry.row for entry in known], names)
    names = [", ".join([name, *own]) for name, own in zip(names, settings, strict=True)]
    steps = [(left + (right - left) * part / 100, bottom - (bottom - top) * part / 100) for part in range(101)]
    diagonal = [(start, high, end, low) for (start, low), (end, high) in pairwise(steps)]
    points = plot_points(known, names, x, y, PREDICTED_FRAME, lines=diagonal)
    num_left_out = sum(entry.row.method_name != "ar" for entry in whole) - len(known)
    num_reached = sum(point.ratio >= 1 for point in points)
    return PredictionPlot(tuple(points), x.scale, y.scale, max(0, num_left_out), num_reached)
