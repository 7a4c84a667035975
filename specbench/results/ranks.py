"""Rows of one table → their ranks, with what the intervals cannot tell apart."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from specbench.results.bootstrap import Metric
from specbench.results.captions import prescribed
from specbench.results.comparable import conditions
from specbench.results.log_ratios import TAILS
from specbench.results.paired import KINDS, Change, RowWithRecords, own, pair_up
from specbench.results.row import Row

MOST_PAIRED = 100  # rows of one table that are compared prompt by prompt
REASON = f"more than {MOST_PAIRED} rows"
Column = NDArray[np.float64]


def separable(sides: Sequence[RowWithRecords], metric: str, by: float) -> tuple[Column, Column, Column]:
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


# Metrics of which less is better, beside seconds and perplexities; the same of the baseline, and the difference to it.
COSTS = (
    "cost_ratio", "overhead_share", "target_passes_per_token", "divergence_bound", "mean_divergence", "repetition_rate",
    "num_unscored", "num_unjudged", "num_programs_ended", "share_truncated", "share_cut_by_length",
    "share_cut_by_context",
)  # fmt: skip


@dataclass(frozen=True)
class Ranked:
    """A row with the best and the worst place that the intervals leave it; null without a value. `unpaired`: why it
    could not be compared with every other row on the same prompts; `unknown`: how many of these changes have no
    interval."""

    side: RowWithRecords
    best: int | None
    worst: int | None
    unpaired: frozenset[str] = frozenset()
    unknown: int = 0

    @property
    def paired(self) -> bool:
        return not self.unpaired

    @property
    def row(self) -> Row:
        return self.side.row

    @property
    def text(self) -> str:
        """ "2", or "2–4" where it is not separable from other rows."""
        if self.best is None or self.worst is None:
            return ""
        return str(self.best) if self.best == self.worst else f"{self.best}–{self.worst}"


def less_is_better(metric: str) -> bool:
    name = metric.removesuffix("_ar").removesuffix("_difference")
    return name in COSTS or name.endswith("_seconds") or "perplexity" in name


def ranked(sides: Sequence[RowWithRecords], metric: str) -> list[Ranked]:
    """The rows from the best to the worst, those without a value last, and of these last those with a prescribed
    acceptance rate: they are no drafters, and are ranked beside none.

    A place is taken from a row by those that are better and separable: the interval of the ratio (or difference) of the
    two leaves out that there is none. So the ranks of rows that are not separable overlap. The intervals of all pairs
    of rows are widened together (`widening`), or equal rows would often look separable. Of more than MOST_PAIRED rows
    nothing is paired.
    """
    sign = 1 if less_is_better(metric) else -1
    drafters = [side for side in sides if prescribed(side.row) is None]
    present = [(value, side) for side in drafters if (value := _value(side, metric)) is not None]
    valued = [side for _, side in sorted(present, key=lambda each: sign * each[0])]
    rest = [
        *(Ranked(side, None, None) for side in drafters if _value(side, metric) is None),
        *(Ranked(side, None, None) for side in sides if prescribed(side.row) is not None),
    ]
    if len(valued) > MOST_PAIRED:
        return [*_crowded(valued, metric), *rest]
    pairs = [(i, j) for i in range(len(valued)) for j in range(i + 1, len(valued))]
    by = widening(len(pairs), min((each.row.n for each in valued), default=0))
    changes = {(i, j): pair_up(valued[i], valued[j]).change(metric).widened(by) for i, j in pairs}
    return [
        *(_ranked(place, side, changes, len(valued)) for place, side in enumerate(valued)),
        *rest,
    ]


def widening(num_pairs: int, num_prompts: int) -> float:
    """How much longer the 95 % intervals of so many pairs are, so that one or more of them leave out the truth in 5 %
    of the tables (Bonferroni, two-sided; quantiles of Student's t). A third of the prompts are its degrees of freedom:
    the far tails of intervals of few prompts are heavier than those of the mean of normal numbers. With 8 equal rows
    and long-tailed lengths, 3 % of the tables at 10 prompts, 4 % at 30 and 100 then have a pair that looks
    separable; without any widening 40 to 65 %."""
    tail, freedom = (1 - TAILS[1]) / max(1, num_pairs), max(1.0, num_prompts / 3)
    return float(special.stdtrit(freedom, 1 - tail) / special.stdtrit(freedom, TAILS[1]))


def _ranked(place: int, side: RowWithRecords, changes: dict[tuple[int, int], Change], total: int) -> Ranked:
    better = sum(changes[other, place].separable for other in range(place))
    worse = sum(changes[place, other].separable for other in range(place + 1, total))
    own = [change for pair, change in changes.items() if place in pair]
    reasons = frozenset(change.unpaired for change in own if change.unpaired is not None)
    return Ranked(side, better + 1, total - worse, reasons, sum(not change.has_interval for change in own))


def _crowded(valued: Sequence[RowWithRecords], metric: str) -> list[Ranked]:
    total = len(valued)
    by = widening(total * (total - 1) // 2, min(side.row.n for side in valued))
    counts = zip(*separable(valued, metric, by), strict=True)
    return [
        Ranked(side, int(before) + 1, total - int(behind), frozenset({REASON}), int(unknown))
        for side, (before, behind, unknown) in zip(valued, counts, strict=True)
    ]


def _value(side: RowWithRecords, metric: str) -> float | None:
    return side.row.metrics.get(metric, Metric()).value


def grouped(sides: Sequence[RowWithRecords], metric: str) -> dict[str, list[RowWithRecords]]:
    """The groups by their conditions, in the order of the rows; `metric`: what ranks them."""
    groups: dict[str, list[RowWithRecords]] = {}
    for side in sides:
        same = {name: value for name, value in conditions(side.row).items() if not name.startswith("signatures.")}
        same |= {f"signatures.{name}": text for name, text in computed(side.row, metric).items()}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(side)
    return groups


def computed(row: Row, metric: str) -> dict[str, str]:
    """The signatures of a table's scores: of what ranks the rows, and of their main score."""
    shown = (metric, f"{row.quality}")
    return {name: text for name, text in row.signatures.items()
            if any(each == name or each in (f"{name}_ar", f"{name}_difference") for each in shown)}  # fmt: skip
