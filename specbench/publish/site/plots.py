"""Plots of quality and speed with their Pareto fronts, and of predicted and measured speed-ups."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from specbench.publish.site.charts import Box, Label, Scale, place_labels, scale
from specbench.publish.site.entries import Entries, SiteRow, settings_apart
from specbench.results.bootstrap import Metric
from specbench.results.row import ALL, Row
from specbench.results.units import bounds_of, number, unit_of, with_interval

MAX_NAMES = 40  # points of one picture with a name
FRAME: Box = (56.0, 16.0, 660.0, 340.0)


@dataclass(frozen=True)
class PlotPoint:
    """A row in a plot. `x`, `y`: its place. `x_interval`, `y_interval`: ends of the intervals, or None. `x_text`,
    `y_text`: its values. `ratio`: y ÷ x, of the values. `is_best`: whether it is on the Pareto front."""

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


@dataclass(frozen=True)
class PlotAxis:
    """The values of one axis, by point, with their scale and texts."""

    values: Sequence[Metric]
    scale: Scale
    texts: Sequence[str]

    def interval(self, point: int) -> tuple[float, float] | None:
        metric = self.values[point]
        return None if metric.low is None or metric.high is None else (self.scale(metric.low), self.scale(metric.high))


def plot_points(
    group: Sequence[SiteRow], names: Sequence[str], x: PlotAxis, y: PlotAxis, frame: Box, best: Collection[int] = ()
) -> list[PlotPoint]:
    """Returns the points of rows. The first MAX_NAMES of them have a name beside them, those on the front first."""
    values = [(first.value or 0.0, second.value or 0.0) for first, second in zip(x.values, y.values, strict=True)]
    places = [(x.scale(first), y.scale(second)) for first, second in values]
    order = sorted(range(len(group)), key=lambda number: number not in best)[:MAX_NAMES]
    labels = dict(zip(order, place_labels([(*places[n], names[n]) for n in order], frame), strict=True))
    return [
        PlotPoint(
            entry, names[n], *places[n], x.interval(n), y.interval(n), x.texts[n], y.texts[n],
            values[n][1] / (values[n][0] or 1.0), n in best, labels.get(n),
        )
        for n, entry in enumerate(group)
    ]  # fmt: skip


@dataclass(frozen=True)
class QualitySpeedPlot:
    """The rows of a group by speed-up (x) and main score (y). `front`: places of the points that no other point beats
    in both. `sweeps`: places of a method at several thresholds. `one`: the place of no speed-up."""

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
        """Returns the corners of the front's line: the best score at each speed-up."""
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
    groups = ([each for each in group if _has(each, "speedup", each.row.quality)] for group in entries.whole())
    found = [_plot(known) for known in groups if len(known) >= 2]
    told = settings_apart([plot.row for plot in found], [plot.title for plot in found])
    return [replace(plot, title=", ".join([plot.title, *own])) for plot, own in zip(found, told, strict=True)]


def _plot(group: Sequence[SiteRow]) -> QualitySpeedPlot:
    row = group[0].row
    unit, bounds = unit_of(row.quality), bounds_of(row.quality or "")
    speedups = [_metric(entry, "speedup") for entry in group]
    scores = [_scaled(_metric(entry, entry.row.quality), unit.factor) for entry in group]
    left, top, right, bottom = FRAME
    scaled = None if bounds is None else (bounds[0] * unit.factor, bounds[1] * unit.factor)
    x = PlotAxis(speedups, scale([1.0, *_ends(speedups)], left, right), [with_interval(each) for each in speedups])
    texts = [with_interval(each, unit.digits) for each in scores]
    y = PlotAxis(scores, scale(_ends(scores), bottom, top, bounds=scaled), texts)
    best = front([(s.value or 0.0, q.value or 0.0) for s, q in zip(speedups, scores, strict=True)])
    names = [entry.label.replace("threshold=", "T = ") for entry in group]
    points = plot_points(group, names, x, y, FRAME, best)
    return QualitySpeedPlot(
        row.task_name if row.subset == ALL else f"{row.task_name} · {row.subset}", unit.label, tuple(points),
        tuple(sorted((point.x, point.y) for point in points if point.is_best)), tuple(_sweeps(points)), x.scale,
        y.scale, x.scale(1.0),
    )  # fmt: skip


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


def _sweeps(points: Sequence[PlotPoint]) -> Iterator[tuple[tuple[float, float], ...]]:
    """Returns the places of each method with several thresholds, from the lowest threshold to the highest."""
    found: dict[str, list[tuple[float, tuple[float, float]]]] = {}
    for point in points:
        row = point.entry.row
        rule = row.options.get("verification")
        threshold = rule.get("threshold") if isinstance(rule, Mapping) else None
        if isinstance(threshold, int | float):
            found.setdefault(f"{row.method} {row.num_draft_tokens}", []).append((threshold, (point.x, point.y)))
    for swept in found.values():
        if len(swept) > 1:
            yield tuple(place for _, place in sorted(swept))


def _metric(entry: SiteRow, name: str | None) -> Metric:
    return entry.row.metrics.get(name or "", Metric())


def _has(entry: SiteRow, *names: str | None) -> bool:
    return all(_metric(entry, name).value is not None for name in names)


def _scaled(metric: Metric, factor: float) -> Metric:
    scaled = {name: None if value is None else value * factor for name, value in metric}
    return Metric(**scaled)


def _ends(metrics: Sequence[Metric]) -> list[float]:
    return [end for metric in metrics for end in (metric.value, metric.low, metric.high) if end is not None]


PREDICTED_FRAME: Box = (56.0, 16.0, 660.0, 460.0)


@dataclass(frozen=True)
class PredictionPlot:
    """Predicted (x) and measured (y) speed-ups. `num_left_out`: rows over all subsets without one of the two.
    `num_reached`: rows that reached the prediction."""

    points: tuple[PlotPoint, ...]
    x: Scale
    y: Scale
    num_left_out: int
    num_reached: int


def prediction_plot(entries: Entries) -> PredictionPlot | None:
    """Returns the plot of all rows that have both speed-ups; None where there are none."""
    whole = [entry for group in entries.whole() for entry in group]
    known = [entry for entry in whole if _has(entry, "speedup_expected", "speedup")]
    if not known:
        return None
    predicted, measured = ([_metric(entry, name) for entry in known] for name in ("speedup_expected", "speedup"))
    left, top, right, bottom = PREDICTED_FRAME
    ends = [each.value for each in predicted] + [end for each in measured for end in (each.value, each.high)]
    every = [0.0, *(end for end in ends if end is not None)]
    x = PlotAxis(predicted, scale(every, left, right), [number(each, 2) for each in predicted])
    y = PlotAxis(measured, scale(every, bottom, top), [with_interval(each) for each in measured])
    points = plot_points(known, _names(known), x, y, PREDICTED_FRAME)
    num_left_out = sum(entry.row.method_name != "ar" for entry in whole) - len(known)
    num_reached = sum(point.ratio >= 1 for point in points)
    return PredictionPlot(tuple(points), x.scale, y.scale, max(0, num_left_out), num_reached)


def _names(entries: Sequence[SiteRow]) -> list[str]:
    """Returns task and method of each row, with the settings that tell rows of one name apart."""
    names = [f"{entry.row.task_name} · {entry.label}" for entry in entries]
    told = settings_apart([entry.row for entry in entries], names)
    return [", ".join([name, *own]) for name, own in zip(names, told, strict=True)]
