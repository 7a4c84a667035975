"""Which of many rows are separable: by their own intervals alone, since pairing thousands of them takes hours."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.leaderboards.changes import KINDS, own
from specbench.leaderboards.side import Side
from specbench.results.bootstrap import Metric

MOST_PAIRED = 100  # rows of one table that are compared prompt by prompt
REASON = f"more than {MOST_PAIRED} rows"
Column = NDArray[np.float64]


def separable(sides: Sequence[Side], metric: str, by: float) -> tuple[Column, Column, Column]:
    """Of each row, which are in order of their values: how many before it and behind it are separable from it, and for
    how many that is not known. The interval of a ratio or difference is that of `paired` without records (MOVER),
    widened by `by`."""
    found = [own(side.row, metric) for side in sides]
    value, low, high = (_column(found, name, KINDS.get(metric) == "ratio") for name in ("value", "low", "high"))
    down, up = by * (value - low), by * (high - value)
    counts = []
    with np.errstate(invalid="ignore"):
        for place in range(len(found)):
            change = value - value[place]
            least, most = change - np.hypot(down, up[place]), change + np.hypot(up, down[place])
            apart, unknown = (least > 0) | (most < 0), np.isnan(least) | np.isnan(most)
            unknown[place] = False
            counts.append((apart[:place].sum(), apart[place + 1 :].sum(), unknown.sum()))
    before, behind, unknown_ = np.array(counts).T
    return before, behind, unknown_


def _column(metrics: Sequence[Metric], name: str, is_ratio: bool) -> Column:
    """On the scale of logs for ratios; NaN where there is none."""
    column = np.array([np.nan if (end := getattr(metric, name)) is None else end for metric in metrics], dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(column > 0, np.log(column), np.nan) if is_ratio else column
