"""Ratios of two metrics of which only the intervals are known, and intervals of ratios made longer."""

import math

from specbench.results.bootstrap import Metric


def unpaired(baseline: Metric, candidate: Metric) -> Metric:
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


def widened(ratio: Metric, by: float) -> Metric:
    """The metric with both ends moved away from its value."""
    if not ratio.value or not ratio.low or not ratio.high:
        return ratio
    low, high = (ratio.value * (end / ratio.value) ** by for end in (ratio.low, ratio.high))
    return Metric(value=ratio.value, low=low, high=high)
