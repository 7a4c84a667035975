"""Parts of the pictures: scales, places of names, bars of subsets, columns of accepted lengths."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from specbench.publish.site.entries import SiteRow
from specbench.results.bootstrap import Bounds, Metric
from specbench.results.captions import decodes_alone, is_baseline
from specbench.results.metrics import accepted_tokens_per_step_of
from specbench.results.paired import RowWithRecords
from specbench.results.row import Row
from specbench.results.units import number, with_interval

Box = tuple[float, float, float, float]  # left, top, right, bottom
HEIGHT, PER_CHARACTER, GAP = 13.0, 6.1, 7.0


@dataclass(frozen=True)
class Label:
    """The place of a name. `x`, `y`: the text's baseline at its anchor."""

    x: float
    y: float
    anchor: str


def place_labels(points: Sequence[tuple[float, float, str]], frame: Box) -> list[Label | None]:
    """Returns for each point (x, y, name) the first free place around it, where the name covers neither a point nor
    another name; None where there is none, or no name."""
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y, _ in points]
    found: list[Label | None] = []
    for x, y, name in points:
        width = PER_CHARACTER * len(name)
        places = [
            ("start", x + GAP, y + 4), ("end", x - GAP, y + 4), ("middle", x, y - GAP - 2), ("middle", x, y + GAP + 9),
            ("start", x + GAP, y - 8), ("start", x + GAP, y + 16), ("end", x - GAP, y - 8), ("end", x - GAP, y + 16),
        ]  # fmt: skip
        for anchor, left, base in places:
            start = left - {"start": 0, "middle": width / 2, "end": width}[anchor]
            box = (start, base - HEIGHT + 3, start + width, base + 3)
            if name and _inside(box, frame) and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                found.append(Label(round(left, 1), round(base, 1), anchor))
                break
        else:
            found.append(None)
    return found


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def _inside(box: Box, frame: Box) -> bool:
    return frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]


STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class AxisTick:
    """A mark on an axis, at a place in units of the picture."""

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
        return [AxisTick(self(value), f"{value:.{digits}f}".replace("-", "−")) for value in values]


def scale(
    values: Iterable[float], start: float, end: float, *, most_ticks: int = 6, bounds: Bounds | None = None
) -> Scale:
    """Returns a scale with round ends around all values, wider where they are equal. `bounds`: of possible values."""
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


class ChartColumn(NamedTuple):
    """A column, which reaches down to the axis. `x`: its left edge. `top`: its upper edge."""

    length: int
    count: int
    share: float
    x: float
    top: float


@dataclass(frozen=True)
class Histogram:
    """`counts`: element k is the number of target passes that accepted k draft tokens; empty where they are unknown.
    `why`: the reason. `base`: the place of the axis in the picture."""

    counts: tuple[int, ...]
    why: str = ""
    base = 160.0

    @property
    def step(self) -> float:
        return 56.0 if len(self.counts) <= 10 else 560 / len(self.counts)

    @property
    def width(self) -> float:
        """Returns the width of a column."""
        return round(self.step * 0.78, 1)

    @cached_property
    def y(self) -> Scale:
        """Returns the scale of the shares in percent."""
        return scale([0.0, *(100 * count / sum(self.counts) for count in self.counts)], self.base, 14.0, most_ticks=4)

    @property
    def columns(self) -> list[ChartColumn]:
        shares = [count / sum(self.counts) for count in self.counts]
        return [
            ChartColumn(length, count, share, round(48 + self.step * length, 1), self.y(100 * share))
            for length, (count, share) in enumerate(zip(self.counts, shares, strict=True))
        ]


def histogram_of(side: RowWithRecords) -> Histogram:
    """Returns the counts of a row, else those of its records, where they are at hand."""
    counts = side.row.accepted_tokens_per_step
    if counts is None and side.method is not None and side.records:
        counts = accepted_tokens_per_step_of(side.records, side.method)
    if counts and sum(counts) and not decodes_alone(side.row):
        return Histogram(counts)
    return Histogram((), _why(side.row, bool(side.records)))


def _why(row: Row, has_records: bool) -> str:
    if decodes_alone(row):
        return "Nothing is drafted: one model decodes alone, one token per pass."
    if "decoder" in row.options:
        return "Unknown: external code decodes, and it does not report its steps."
    if has_records or row.accepted_tokens_per_step is not None:
        return "Unknown: the answers have no target pass after the first token."
    return "Unknown: the row does not have it, and the records of its run are not at hand."


LABELS, WIDTH, LINE = 88.0, 620.0, 26.0  # width of the names; width of the picture; height of a bar and its gap


@dataclass(frozen=True)
class Bar:
    """A bar. `y`: its upper edge. `end`, `low`, `high`: places on the x axis; None where there is no interval."""

    entry: SiteRow
    y: float
    end: float
    low: float | None
    high: float | None
    speedup: str
    acceptance: str


@dataclass(frozen=True)
class BarChart:
    """Speed-ups of the subsets of a task. `one`: the place of no speed-up."""

    bars: tuple[Bar, ...]
    scale: Scale
    one: float
    height: float


def bars_of(family: Sequence[SiteRow]) -> BarChart | None:
    """Returns the bars of the subsets; None for one subset, no speed-ups, or the baseline's."""
    speedups = [entry.row.metrics.get("speedup", Metric()) for entry in family]
    known = [(entry, metric) for entry, metric in zip(family, speedups, strict=True)
             if metric.value is not None and not is_baseline(entry.row)]  # fmt: skip
    if len(known) < 2:
        return None
    ends = [end for _, metric in known for end in (metric.value, metric.low, metric.high) if end is not None]
    x = scale([0.0, 1.0, *ends], LABELS, WIDTH - 12)
    bars = [
        Bar(
            entry, 6 + LINE * place, x(metric.value or 0.0),
            None if metric.low is None else x(metric.low), None if metric.high is None else x(metric.high),
            with_interval(metric), number(entry.row.metrics.get("acceptance_rate"), 3),
        )
        for place, (entry, metric) in enumerate(known)
    ]  # fmt: skip
    return BarChart(tuple(bars), x, x(1.0), 6 + LINE * len(known))
