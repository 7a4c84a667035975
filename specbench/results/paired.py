"""Two methods on the same prompts → ratios and differences of their metrics, with intervals.

A resampled prompt keeps all that either run measured of it, AR included, so that what makes a prompt fast or slow for
both cancels. Without records only the intervals of the two rows are known. They are joined as if the runs were
independent, and the result is called not paired.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from specbench.records.folder import RecordedMethod
from specbench.records.records import Key, Record
from specbench.results.answers import (
    BASELINE,
    Answer,
    Columns,
    acceptance_rates,
    answers_of,
    end_to_end_columns,
    length_columns,
    speed_columns,
)
from specbench.results.row import SHUFFLED, Row
from specbench.results.scores import ScoringSpec, quality
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import Estimate, Resampler


def unpaired_difference(first: Estimate, second: Estimate) -> Estimate:
    """Returns second − first with an interval from the two intervals alone: the squared distances of the ends are added
    (MOVER: Zou and Donner, Statistics in Medicine 27, 2008)."""
    if first.value is None or second.value is None:
        return Estimate()
    value = second.value - first.value
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Estimate(value=value)
    down = math.hypot(second.value - second.low, first.high - first.value)
    return Estimate(
        value=value, low=value - down, high=value + math.hypot(second.high - second.value, first.value - first.low)
    )


def widen(change: Estimate, by: float) -> Estimate:
    """Returns the metric with both ends `by` times as far from its value."""
    if change.value is None or change.low is None or change.high is None:
        return change
    low, high = (change.value + by * (end - change.value) for end in (change.low, change.high))
    return Estimate(value=change.value, low=low, high=high)


def unpaired_ratio(baseline: Estimate, candidate: Estimate) -> Estimate:
    """Returns candidate ÷ baseline with an interval from the two intervals alone, like `unpaired_difference` on the log
    scale."""
    if not baseline.value or not candidate.value:
        return Estimate()
    ratio = candidate.value / baseline.value
    if not math.isfinite(ratio):
        return Estimate()
    ends = (baseline.low, baseline.high, candidate.low, candidate.high)
    if any(end is None or end <= 0 for end in ends):
        return Estimate(value=ratio)
    before_low, before_high, low, high = (math.log(end) for end in ends if end is not None)
    before, now = math.log(baseline.value), math.log(candidate.value)
    with np.errstate(over="ignore"):
        least = ratio * np.exp(-math.hypot(now - low, before_high - before))
        most = ratio * np.exp(math.hypot(high - now, before - before_low))
    return Estimate(value=ratio, low=least, high=most) if np.isfinite(most) else Estimate(value=ratio)


def widen_ratio(ratio: Estimate, by: float) -> Estimate:
    """Returns the metric with both ends `by` times as far from its value on the log scale."""
    if not ratio.value or not ratio.low or not ratio.high:
        return ratio
    low, high = (ratio.value * (end / ratio.value) ** by for end in (ratio.low, ratio.high))
    return Estimate(value=ratio.value, low=low, high=high)


Kind = Literal["ratio", "difference"]
KINDS: dict[str, Kind] = {
    "speedup": "ratio", "speedup_e2e": "ratio", "tokens_per_second": "ratio", "tokens_per_second_ar": "ratio",
    "mean_acceptance_length": "ratio", "acceptance_rate": "difference", "tpot_ratio": "ratio", "e2e_ratio": "ratio",
}  # fmt: skip
NEUTRAL: dict[Kind, float] = {"ratio": 1.0, "difference": 0.0}
SAME_EXAMPLE = ("prompt", "reference_digest")  # fields that the answers of a pair share
OVER_AR = ("speedup", "speedup_e2e")  # exactly 1 for AR itself


@dataclass(frozen=True)
class MetricChange:
    """A metric of both sides. `change`: second ÷ first, or second − first, depending on `kind`. `unpaired`: the reason
    why the change is not paired; None if it is."""

    metric: str
    kind: Kind
    first: Estimate
    second: Estimate
    change: Estimate
    unpaired: str | None = None

    @property
    def paired(self) -> bool:
        return self.unpaired is None

    @property
    def has_interval(self) -> bool:
        return self.change.low is not None and self.change.high is not None

    @property
    def separable(self) -> bool:
        """Whether the interval of the change excludes "no change"; False without an interval."""
        low, high = self.change.low, self.change.high
        return low is not None and high is not None and not low <= NEUTRAL[self.kind] <= high

    def widened(self, by: float) -> "MetricChange":
        """Returns the change with both ends `by` times as far from the value, for ratios on the log scale."""
        make = widen_ratio if self.kind == "ratio" else widen
        return replace(self, change=make(self.change, by))


def metric_of_row(row: Row, metric: str) -> Estimate:
    """Returns a row's metric. AR's speed-up over itself is exact: its interval is the value."""
    found = row.metrics.get(metric, Estimate())
    exact = metric in OVER_AR and row.method_name == "ar" and found.value == 1
    return Estimate(value=1.0, low=1.0, high=1.0) if exact else found


@dataclass(frozen=True)
class RowWithRecords:
    """A row with its answers, those of AR to the same prompts, method and scorers. Without records, `method` and
    `scoring` are None. `records`: of the same answers; each is read when it is asked for."""

    row: Row
    own: Sequence[Answer] = ()
    baseline: Sequence[Answer] = ()
    method: MethodSpec | RecordedMethod | None = None
    scoring: Mapping[str, ScoringSpec] | None = None
    records: Sequence[Record] = ()

    @classmethod
    def of(
        cls, row: Row, records: Sequence[Record], method: MethodSpec | RecordedMethod,
        scoring: Mapping[str, ScoringSpec],
    ) -> Self:  # fmt: skip
        own = answers_of(records, method.name, method.decodes_with)
        return cls(row, own, answers_of(records, BASELINE), method, scoring, records)


NO_FORM, NO_RECORDS, OTHER_PROMPTS, OF_LOAD = (
    "this metric has no paired form", "records not found", "records are of other prompts",
    "rows of several requests at once rest on windows",
)  # fmt: skip


@dataclass(frozen=True)
class Pairs:
    """Two sides with answers to the same prompts in the same order. `own`, `baseline`: the answers of the first side's
    method and of its AR, then those of the second side."""

    first: RowWithRecords
    second: RowWithRecords
    own: tuple[Sequence[Answer], Sequence[Answer]]
    baseline: tuple[Sequence[Answer], Sequence[Answer]]

    def change(self, metric: str) -> MetricChange:
        """Returns the change of a metric. It is paired if the metric has a paired form and both sides have records."""
        kind = KINDS.get(metric, "difference")
        first, second = (metric_of_row(side.row, metric) for side in (self.first, self.second))
        make = _PAIRED.get(metric)
        reason = self._unpaired(metric)
        if reason is None:
            return MetricChange(metric, kind, first, second, make(self) if make is not None else _score(self, metric))
        join = unpaired_ratio if kind == "ratio" else unpaired_difference
        return MetricChange(metric, kind, first, second, join(first, second), reason)

    def _unpaired(self, metric: str) -> str | None:
        """Returns the reason why a metric cannot be compared prompt by prompt; None if it can."""
        if self.first.row.level or self.second.row.level:
            return OF_LOAD
        if metric not in _PAIRED and not metric == self.first.row.quality == self.second.row.quality:
            return NO_FORM
        if not (self.first.own and self.second.own):
            return NO_RECORDS
        return None if self.own[0] else OTHER_PROMPTS

    @property
    def method(self) -> str:
        return self.first.row.method_name

    @property
    def num_answers(self) -> int:
        return len(self.own[0])

    @property
    def num_prompts(self) -> int:
        return len({answer.key[:3] for answer in self.own[0]})

    @property
    def prompts(self) -> Resampler:
        return Resampler.of(self.own[0], 0, self._in_orders)

    @property
    def times(self) -> Resampler:
        """The prompt or part of each pair of answers, for intervals of times."""
        side = next((each for each in self.own if each and each[0].part is not None), self.own[0])
        return Resampler.of_times(side, 0, self._in_orders)

    @property
    def _in_orders(self) -> bool:
        """Whether each repeat has a random order of the prompts, on which the numbers of a side depend."""
        return SHUFFLED in (self.first.row.memory, self.second.row.memory)

    def select(self, keys: Collection[Key]) -> "Pairs":
        (first, second), (plain, other) = (
            ([answer for answer in side if answer.key in keys] for side in sides) for sides in (self.own, self.baseline)
        )
        return replace(self, own=(first, second), baseline=(plain, other))

    def sides(self, with_ar: bool = True, with_own: bool = True) -> list[Sequence[Answer]]:
        """Returns the answers of the method and of AR on the second side, then on the first."""
        return [
            answers for own, ar in zip(self.own[::-1], self.baseline[::-1], strict=True)
            for answers in (*([own] if with_own else []), *([ar] if with_ar else []))
        ]  # fmt: skip

    def speed_columns(self, with_ar: bool = True, with_own: bool = True) -> Columns:
        """Returns tokens and seconds of the `sides` (`speed_columns`)."""
        return speed_columns(self.sides(with_ar, with_own))


def join_pairs(parts: Sequence[Pairs]) -> Pairs:
    """Joins the answers of several subsets; the rows are those of the first."""
    first, second = ([answer for part in parts for answer in part.own[side]] for side in (0, 1))
    plain, other = ([answer for part in parts for answer in part.baseline[side]] for side in (0, 1))
    return replace(parts[0], own=(first, second), baseline=(plain, other))


def pair_up(first: RowWithRecords, second: RowWithRecords, same: Collection[str] = SAME_EXAMPLE) -> Pairs:
    """Pairs the answers of both sides by example, repeat and turn, and leaves out pairs that differ in `same`."""
    others = {answer.key: place for place, answer in enumerate(second.own)}
    places = [
        (place, others[answer.key])
        for place, answer in enumerate(first.own)
        if answer.key in others
        and all(getattr(answer, name) == getattr(second.own[others[answer.key]], name) for name in same)
    ]
    own = [first.own[place] for place, _ in places], [second.own[place] for _, place in places]
    baseline = [first.baseline[place] for place, _ in places], [second.baseline[place] for _, place in places]
    return Pairs(first, second, own, baseline)


def _acceptance(pairs: Pairs) -> Estimate:
    both = zip(*map(acceptance_rates, pairs.own[::-1]), strict=True)
    return pairs.prompts.mean([None if a is None or b is None else a - b for a, b in both], (-1.0, 1.0))


def _score(pairs: Pairs, name: str) -> Estimate:
    found = quality(pairs.prompts, *pairs.own[::-1], pairs.first.scoring or {})
    return found.get(f"{name}_difference", Estimate())


_PAIRED: dict[str, Callable[[Pairs], Estimate]] = {
    "speedup": lambda pairs: pairs.times.ratio(*pairs.speed_columns()),
    "speedup_e2e": lambda pairs: pairs.times.ratio(*end_to_end_columns(pairs.sides())),
    "tokens_per_second": lambda pairs: pairs.times.ratio(*pairs.speed_columns(with_ar=False)),
    "tokens_per_second_ar": lambda pairs: pairs.times.ratio(*pairs.speed_columns(with_own=False)),
    "mean_acceptance_length": lambda pairs: pairs.prompts.ratio(*length_columns(pairs.own[::-1])),
    "acceptance_rate": _acceptance,
}
