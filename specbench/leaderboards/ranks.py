"""Rows of one table → their ranks, with what the intervals cannot tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.leaderboards.paired import Change, Side, pair_up
from specbench.results.bootstrap import Metric
from specbench.results.leaderboard import Row

# Metrics of which less is better, beside those that end in "_seconds" or begin with "num_" or "share_".
COSTS = (
    "cost_ratio", "overhead_share", "overhead_share_ar", "target_passes_per_token", "divergence_bound",
    "mean_divergence", "repetition_rate",
)  # fmt: skip


@dataclass(frozen=True)
class Ranked:
    """A row with the best and the worst place that the intervals leave it; null without a value. `paired`: whether it
    could be compared with every other row on the same prompts."""

    side: Side
    best: int | None
    worst: int | None
    paired: bool

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
    return metric in COSTS or metric.endswith("_seconds") or metric.startswith(("num_", "share_"))


def ranked(sides: Sequence[Side], metric: str) -> list[Ranked]:
    """The rows from the best to the worst, those without a value last.

    A place is taken from a row by those that are better and separable: the interval of the ratio (or difference) of the
    two leaves out that there is none. So the ranks of rows that are not separable overlap.
    """
    sign = 1 if less_is_better(metric) else -1
    present = [(value, side) for side in sides if (value := _value(side, metric)) is not None]
    valued = [side for _, side in sorted(present, key=lambda each: sign * each[0])]
    pairs = [(i, j) for i in range(len(valued)) for j in range(i + 1, len(valued))]
    changes = {(i, j): pair_up(valued[i], valued[j]).change(metric) for i, j in pairs}
    return [
        *(_ranked(place, side, changes, len(valued)) for place, side in enumerate(valued)),
        *(Ranked(side, None, None, True) for side in sides if _value(side, metric) is None),
    ]


def _ranked(place: int, side: Side, changes: dict[tuple[int, int], Change], total: int) -> Ranked:
    better = sum(changes[other, place].separable for other in range(place))
    worse = sum(changes[place, other].separable for other in range(place + 1, total))
    own = [change for pair, change in changes.items() if place in pair]
    return Ranked(side, better + 1, total - worse, all(change.paired for change in own))


def _value(side: Side, metric: str) -> float | None:
    return side.row.metrics.get(metric, Metric()).value
