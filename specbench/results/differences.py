"""Differences of two metrics of which only the intervals are known, and intervals of differences made longer."""

import math
from collections.abc import Sequence

from specbench.results.acceptance import timed_tokens, tokens_of_passes
from specbench.results.bootstrap import Metric
from specbench.running.records import Generation


def unpaired(first: Metric, second: Metric) -> Metric:
    """The difference of two metrics of which only their intervals are known: the distances of their ends, squared and
    added (MOVER: Zou and Donner, Statistics in Medicine 27, 2008)."""
    if first.value is None or second.value is None:
        return Metric()
    value = second.value - first.value
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Metric(value=value)
    down = math.hypot(second.value - second.low, first.high - first.value)
    return Metric(
        value=value, low=value - down, high=value + math.hypot(second.high - second.value, first.value - first.low)
    )


def widened(change: Metric, by: float) -> Metric:
    """The metric with both ends moved away from its value."""
    if change.value is None or change.low is None or change.high is None:
        return change
    low, high = (change.value + by * (end - change.value) for end in (change.low, change.high))
    return Metric(value=change.value, low=low, high=high)


def unpaired_ratio(baseline: Metric, candidate: Metric) -> Metric:
    """The ratio of two metrics of which nothing but their intervals is known. Its ends: the distances of theirs on the
    scale of the logs, squared and added (MOVER: Zou and Donner, Statistics in Medicine 27, 2008)."""
    if not baseline.value or not candidate.value:
        return Metric()
    ratio = candidate.value / baseline.value
    if not math.isfinite(ratio):
        return Metric()
    ends = (baseline.low, baseline.high, candidate.low, candidate.high)
    if any(end is None or end <= 0 for end in ends):
        return Metric(value=ratio)
    before_low, before_high, low, high = (math.log(end) for end in ends if end is not None)
    before, now = math.log(baseline.value), math.log(candidate.value)
    return _with_ends(ratio, -math.hypot(now - low, before_high - before), math.hypot(high - now, before - before_low))


def _with_ends(ratio: float, below: float, above: float) -> Metric:
    """A ratio with its ends, as far from it on the scale of the logs; without them where no number holds one."""
    try:
        low, high = ratio * math.exp(below), ratio * math.exp(above)
    except OverflowError:
        return Metric(value=ratio)
    return Metric(value=ratio, low=low, high=high) if math.isfinite(high) else Metric(value=ratio)


def widened_ratio(ratio: Metric, by: float) -> Metric:
    """The metric with both ends moved away from its value."""
    if not ratio.value or not ratio.low or not ratio.high:
        return ratio
    low, high = (ratio.value * (end / ratio.value) ** by for end in (ratio.low, ratio.high))
    return Metric(value=ratio.value, low=low, high=high)


Sides = Sequence[Sequence[Generation]]  # of each side its generations, in the same order of prompts
Columns = list[list[float]]  # two of each side, of all generations


def speed_columns(sides: Sides) -> Columns:
    """Tokens and seconds. A generation of one token has no speed: it is left out on every side, so that what is
    compared is of the same answers."""
    timed = [min(map(timed_tokens, each)) > 0 for each in zip(*sides, strict=True)]
    return [
        [float(value(g) * keep) for g, keep in zip(generations, timed, strict=True)]
        for generations in sides
        for value in (timed_tokens, lambda g: g["decode_seconds"])
    ]


def length_columns(sides: Sides) -> Columns:
    """Emitted tokens and target passes. A generation without a pass has no tokens per pass: it is left out on every
    side, as of speeds."""
    counts = [list(map(tokens_of_passes, generations)) for generations in sides]
    known = [min(passes for _, passes in each) > 0 for each in zip(*counts, strict=True)]
    return [
        [float(each[part] * keep) for each, keep in zip(side, known, strict=True)] for side in counts for part in (0, 1)
    ]
