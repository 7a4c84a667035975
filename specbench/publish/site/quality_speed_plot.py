"""Plots of quality and speed with their Pareto fronts, and of predicted and measured speed-ups."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from specbench.publish.site.charts import Box, Label, Scale, place_labels, scale
from specbench.publish.site.entries import Entries, SiteRow, settings_apart
from specbench.results.bootstrap import Metric
from specbench.results.row import Row
from specbench.results.units import bounds_of, number, unit_of, with_interval

MAX_NAMES = 40  # points of one picture with a name
FRAME: Box = (56.0, 16.0, 660.0, 340.0)


@dataclass(frozen=True)
class PlotPoint:
    """A row in a plot. `x_interval`, `y_interval`: ends of the intervals of speed-up and score, or None.
    `is_best`: whether it is on the front."""

    entry: SiteRow
    name: str
    x: float
    y: float
    x_interval: tuple[float, float] | None
    y_interval: tuple[float, float] | None
    is_best: bool
    speedup: str
    score: str
    label: Label | None


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
    groups = (
        [entry for entry in group if None not in (_speedup(entry.row).value, _score(entry.row).value)]
        for group in entries.whole()
    )
    found = [_plot(known) for known in groups if len(known) >= 2]
    told = settings_apart([plot.row for plot in found], [plot.title for plot in found])
    return [replace(plot, title=", ".join([plot.title, *own])) for plot, own in zip(found, told, strict=True)]


def _title(row: Row) -> str:
    return row.task_name if row.subset == "all" else f"{row.task_name} · {row.subset}"


def _plot(group: Sequence[SiteRow]) -> QualitySpeedPlot:
    row = group[0].row
    unit = unit_of(row.quality)
    speedups = [_speedup(entry.row) for entry in group]
    scores = [_scaled(_score(entry.row), unit.factor) for entry in group]
    left, top, right, bottom = FRAME
    x = scale([1.0, *_ends(speedups)], left, right)
    bounds = bounds_of(row.quality or "")
    scaled = None if bounds is None else (bounds[0] * unit.factor, bounds[1] * unit.factor)
    y = scale(_ends(scores), bottom, top, bounds=scaled)
    values = [(s.value or 0.0, q.value or 0.0) for s, q in zip(speedups, scores, strict=True)]
    best = front(values)
    places = [(x(speed), y(score)) for speed, score in values]
    names = [entry.label.replace("threshold=", "T = ") for entry in group]
    order = sorted(range(len(group)), key=lambda number: number not in best)[:MAX_NAMES]  # the front's names first
    labels = dict(zip(order, place_labels([(*places[n], names[n]) for n in order], FRAME), strict=True))
    points = [
        PlotPoint(
            entry, names[n], *places[n], _whisker(x, speedups[n]), _whisker(y, scores[n]), n in best,
            with_interval(speedups[n]), _score_text(scores[n], unit.digits), labels.get(n),
        )
        for n, entry in enumerate(group)
    ]  # fmt: skip
    line = sorted((places[n] for n in best), key=lambda place: place[0])
    return QualitySpeedPlot(
        _title(row), unit.label, tuple(points), tuple(line), tuple(_sweeps(group, places)), x, y, x(1.0)
    )


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


def _sweeps(
    group: Sequence[SiteRow], places: Sequence[tuple[float, float]]
) -> Iterator[tuple[tuple[float, float], ...]]:
    """Returns the places of each method with several thresholds, from the lowest threshold to the highest."""
    found: dict[str, list[tuple[float, tuple[float, float]]]] = {}
    for entry, place in zip(group, places, strict=True):
        rule = entry.row.options.get("verification")
        threshold = rule.get("threshold") if isinstance(rule, Mapping) else None
        if isinstance(threshold, int | float):
            found.setdefault(f"{entry.row.method} {entry.row.num_draft_tokens}", []).append((threshold, place))
    for swept in found.values():
        if len(swept) > 1:
            yield tuple(place for _, place in sorted(swept))


def _speedup(row: Row) -> Metric:
    return row.metrics.get("speedup", Metric())


def _score(row: Row) -> Metric:
    return row.metrics.get(row.quality or "", Metric())


def _scaled(metric: Metric, factor: float) -> Metric:
    scaled = {name: None if value is None else value * factor for name, value in metric}
    return Metric(**scaled)


def _ends(metrics: Sequence[Metric]) -> list[float]:
    return [end for metric in metrics for end in (metric.value, metric.low, metric.high) if end is not None]


def _whisker(place: Scale, metric: Metric) -> tuple[float, float] | None:
    return None if metric.low is None or metric.high is None else (place(metric.low), place(metric.high))


def _score_text(metric: Metric, digits: int) -> str:
    if metric.low is None or metric.high is None:
        return number(metric, digits)
    return f"{metric.value:.{digits}f} [{metric.low:.{digits}f}, {metric.high:.{digits}f}]"


PREDICTED_FRAME: Box = (56.0, 16.0, 660.0, 460.0)


@dataclass(frozen=True)
class PredictedPoint:
    """A row in the plot of predictions. `ratio`: measured ÷ predicted."""

    entry: SiteRow
    name: str
    x: float
    y: float
    y_interval: tuple[float, float] | None
    predicted: str
    speedup: str
    ratio: float
    label: Label | None


@dataclass(frozen=True)
class PredictionPlot:
    """Predicted (x) and measured (y) speed-ups. `num_left_out`: rows over all subsets without one of the two.
    `num_reached`: rows that reached the prediction."""

    points: tuple[PredictedPoint, ...]
    x: Scale
    y: Scale
    num_left_out: int
    num_reached: int


def prediction_plot(entries: Entries) -> PredictionPlot | None:
    """Returns the plot of all rows that have both speed-ups; None where there are none."""
    whole = [entry for group in entries.whole() for entry in group]
    known = [
        (entry, predicted, speedup)
        for entry in whole
        if (predicted := entry.row.metrics.get("speedup_expected", Metric())).value is not None
        and (speedup := entry.row.metrics.get("speedup", Metric())).value is not None
    ]
    if not known:
        return None
    left, top, right, bottom = PREDICTED_FRAME
    ends = [0.0, *(end for _, expected, speedup in known
                   for end in (expected.value, speedup.value, speedup.high) if end is not None)]  # fmt: skip
    x, y = scale(ends, left, right), scale(ends, bottom, top)
    names = _names([entry for entry, _, _ in known])
    places = [(x(expected.value or 0.0), y(speedup.value or 0.0)) for _, expected, speedup in known]
    named = [(*place, name) for place, name in zip(places, names, strict=True)][:MAX_NAMES]
    labels = [*place_labels(named, PREDICTED_FRAME), *[None] * (len(known) - len(named))]
    points = [
        PredictedPoint(
            entry, name, *place,
            None if speedup.low is None or speedup.high is None else (y(speedup.low), y(speedup.high)),
            number(expected, 2), with_interval(speedup), (speedup.value or 0.0) / (expected.value or 1.0), label,
        )
        for (entry, expected, speedup), name, place, label in zip(known, names, places, labels, strict=True)
    ]  # fmt: skip
    left_out = sum(entry.row.method_name != "ar" for entry in whole) - len(known)
    return PredictionPlot(tuple(points), x, y, max(0, left_out), sum(point.ratio >= 1 for point in points))


def _names(entries: Sequence[SiteRow]) -> list[str]:
    """Returns task and method of each row, with the settings that tell rows of one name apart."""
    names = [f"{entry.row.task_name} · {entry.label}" for entry in entries]
    told = settings_apart([entry.row for entry in entries], names)
    return [", ".join([name, *own]) for name, own in zip(names, told, strict=True)]
