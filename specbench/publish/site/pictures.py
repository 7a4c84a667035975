"""Speed-ups of a task's subsets as bars with intervals, and accepted lengths as columns."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.publish.site.entries import Entry
from specbench.publish.site.geometry import Scale, scale
from specbench.results.bootstrap import Metric
from specbench.results.captions import decodes_alone, is_baseline
from specbench.results.metrics import accepted_lengths_of
from specbench.results.paired import RowWithRecords
from specbench.results.row import Row
from specbench.results.units import number, with_interval


@dataclass(frozen=True)
class Histogram:
    """`counts`: element k, the target passes that accepted k draft tokens; empty where they are not known, and then
    `why`."""

    counts: tuple[int, ...]
    why: str = ""

    @property
    def shares(self) -> list[float]:
        return [count / max(1, sum(self.counts)) for count in self.counts]


def histogram_of(side: RowWithRecords) -> Histogram:
    """The row's own, else of its records, where they are at hand."""
    counts = side.row.accepted_lengths
    if counts is None and side.method is not None and side.records:
        counts = accepted_lengths_of(side.records, side.method)
    if counts and sum(counts) and not decodes_alone(side.row):
        return Histogram(counts)
    return Histogram((), _why(side.row, bool(side.records)))


def _why(row: Row, has_records: bool) -> str:
    if decodes_alone(row):
        return "Nothing is drafted here: one model decodes alone, a token per pass."
    if "decoder" in row.options:
        return "Not known: external code decodes, and it does not tell its steps."
    if has_records or row.accepted_lengths is not None:
        return "Not known: its answers have no target pass after the first token."
    return "Not known: the row does not hold it, and the records of its run are not at hand."


LABELS, WIDTH, LINE = 88.0, 620.0, 26.0  # of the names on the left; of the picture; of a bar with the room below it


@dataclass(frozen=True)
class Bar:
    """`y`: its upper edge; `end`, `low`, `high`: places on the x axis, null where there is no interval."""

    entry: Entry
    y: float
    end: float
    low: float | None
    high: float | None
    speedup: str
    acceptance: str


@dataclass(frozen=True)
class Bars:
    bars: tuple[Bar, ...]
    scale: Scale
    one: float
    height: float


def bars_of(family: Sequence[Entry]) -> Bars | None:
    """None where there is nothing to be compared: a single subset, no speed-ups, or those of the baseline itself."""
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
    return Bars(tuple(bars), x, x(1.0), 6 + LINE * len(known))


@dataclass(frozen=True)
class ColumnOfShare:
    """`x`: its left edge; `top`: of what reaches down to the axis."""

    length: int
    count: int
    share: float
    x: float
    top: float


@dataclass(frozen=True)
class Columns:
    columns: tuple[ColumnOfShare, ...]
    width: float
    base: float
    y: Scale


def columns_of(histogram: Histogram) -> Columns | None:
    if not histogram.counts:
        return None
    base, step = 160.0, 56.0 if len(histogram.counts) <= 10 else 560 / len(histogram.counts)
    y = scale([0.0, *(100 * share for share in histogram.shares)], base, 14.0, most_ticks=4)
    columns = [
        ColumnOfShare(length, count, share, round(48 + step * length, 1), y(100 * share))
        for length, (count, share) in enumerate(zip(histogram.counts, histogram.shares, strict=True))
    ]
    return Columns(tuple(columns), round(step * 0.78, 1), base, y)
