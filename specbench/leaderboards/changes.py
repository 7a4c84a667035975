"""A metric of two rows, and what lies between them."""

from dataclasses import dataclass, replace
from typing import Literal

from specbench.fairness.runs import method_name
from specbench.results import differences, ratios
from specbench.results.bootstrap import Metric
from specbench.results.row import Row

Kind = Literal["ratio", "difference"]
KINDS: dict[str, Kind] = {
    "speedup": "ratio", "tokens_per_second": "ratio", "tokens_per_second_ar": "ratio",
    "mean_acceptance_length": "ratio", "acceptance_rate": "difference",
}  # fmt: skip
NEUTRAL: dict[Kind, float] = {"ratio": 1.0, "difference": 0.0}
OVER_AR = ("speedup", "speedup_e2e")  # of AR itself they are exactly 1


@dataclass(frozen=True)
class Change:
    """A metric of both sides, and the second's ÷ the first's (or minus it). `unpaired`: why it is not paired."""

    metric: str
    kind: Kind
    first: Metric
    second: Metric
    change: Metric
    unpaired: str | None = None

    @property
    def paired(self) -> bool:
        return self.unpaired is None

    @property
    def has_interval(self) -> bool:
        return self.change.low is not None and self.change.high is not None

    @property
    def separable(self) -> bool:
        """Whether the interval of the change leaves out that there is none; not where it has no interval."""
        low, high = self.change.low, self.change.high
        return low is not None and high is not None and not low <= NEUTRAL[self.kind] <= high

    def widened(self, by: float) -> "Change":
        """The same with both ends so many times as far from the value; of a ratio on the scale of its logs."""
        make = ratios.widened if self.kind == "ratio" else differences.widened
        return replace(self, change=make(self.change, by))


def own(row: Row, metric: str) -> Metric:
    """A row's metric. What AR is faster than itself is exact: its interval is the value."""
    found = row.metrics.get(metric, Metric())
    exact = metric in OVER_AR and method_name(row) == "ar" and found.value == 1
    return Metric(value=1.0, low=1.0, high=1.0) if exact else found
