"""Numbers with their intervals, and tables, in Markdown."""

from collections.abc import Iterable, Sequence

from specbench.analysis.fairness.fairness import NumberChange
from specbench.core.table import markdown_table
from specbench.statistics.bootstrap import Estimate


def number(metric: Estimate | None, digits: int = 2) -> str:
    return "–" if metric is None or metric.value is None else f"{metric.value:.{digits}f}"


def interval(metric: Estimate | None, digits: int = 2) -> str:
    """The value with its interval where it has one."""
    if metric is None or metric.low is None or metric.high is None:
        return number(metric, digits)
    return f"{number(metric, digits)} [{metric.low:.{digits}f}, {metric.high:.{digits}f}]"


def change(found: NumberChange, digits: int = 2) -> str:
    """before → after, and the paired difference with its interval."""
    return f"{number(found.before, digits)} → {number(found.after, digits)}: {interval(found.difference, digits)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], num_texts: int = 1) -> str:
    """A Markdown table; all columns but the first `num_texts` are right-aligned."""
    return markdown_table(head, list(rows), [column >= num_texts for column in range(len(head))]) + "\n"
