"""Differences of two metrics of which only the intervals are known, and intervals of differences made longer."""

import math

from specbench.results.bootstrap import Metric


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
