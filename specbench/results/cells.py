"""Metrics as the cells of a table."""

from specbench.results.bootstrap import Metric

NULL = "–"


def short(versioned: str) -> str:
    """name@version:digest → name@version"""
    return versioned.partition(":")[0]


def number(metric: Metric | None, digits: int, factor: float = 1) -> str:
    if metric is None or metric.value is None:
        return NULL
    return f"{factor * metric.value:.{digits}f}"


def speed(metric: Metric | None) -> str:
    return number(metric, 1 if metric is None or (metric.value or 0) < 1000 else 0)


def with_interval(metric: Metric | None) -> str:
    if metric is None or metric.low is None or metric.high is None:
        return number(metric, 2)
    return f"{metric.value:.2f} [{metric.low:.2f}, {metric.high:.2f}]"
