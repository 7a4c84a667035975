"""The report of `specbench limit` on a pair: bounds, measurements, draft cost, draft lengths, a verdict."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, FiniteFloat

from specbench.results.bootstrap import Metric
from specbench.results.log_ratios import Array
from specbench.results.row import RowWarning
from specbench.results.units import with_interval

RATES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
Number = TypeVar("Number", float, Array)


@dataclass(frozen=True)
class Costs(Generic[Number]):
    """Costs in single-token target passes: the draft cost c (`cost_ratio`), and the verification cost by query length.

    They are numbers, or arrays of equal shape with one case at each place.
    """

    cost_ratio: Number
    verifying: Mapping[int, Number]

    def verification(self, query_length: int) -> Number:
        """Returns the cost of a pass over so many tokens, interpolated linearly between measured lengths."""
        lengths = sorted(self.verifying)
        place = bisect_left(lengths, query_length)
        if lengths[place] == query_length:
            return self.verifying[query_length]
        low, high = lengths[place - 1], lengths[place]
        part = (query_length - low) / (high - low)
        return (1 - part) * self.verifying[low] + part * self.verifying[high]

    def speedup(self, acceptance_rate: float, num_draft_tokens: int) -> Number:
        """Σ_{k=0..γ} α^k / (γc + v(γ+1)): f(α, γ, c) of arXiv:2211.17192, theorem 3.8, with the verifying pass at its
        own cost v instead of 1."""
        tokens = sum(acceptance_rate**k for k in range(num_draft_tokens + 1))
        return tokens / (num_draft_tokens * self.cost_ratio + self.verification(num_draft_tokens + 1))


def best(costs: Costs[float], acceptance_rate: float) -> int:
    """Returns the draft length with the highest speed-up; 0 where drafting does not pay."""
    return max(range(max(costs.verifying)), key=lambda length: costs.speedup(acceptance_rate, length))


class Quartiles(BaseModel):
    """The median of the rounds with its quartiles."""

    median: float
    low: float
    high: float


class Ratio(Metric):
    """A median over rounds, with its 95 % interval; of few rounds there is none."""

    value: FiniteFloat

    @property
    def digits(self) -> int:
        """Returns the number of decimals that are shown."""
        return 2 if self.value >= 0.1 else 3

    @property
    def text(self) -> str:
        """Returns the figure, with its interval where it has one."""
        return with_interval(self, self.digits)

    @property
    def span(self) -> str:
        """Returns the ends of the interval, which must exist, such as "1.02 to 1.31"."""
        return f"{self.low:.{self.digits}f} to {self.high:.{self.digits}f}"

    @property
    def width(self) -> float:
        """Returns the end of the interval ÷ its start; 1 where there is none."""
        return self.high / self.low if self.low and self.high else 1.0

    def tells_from(self, value: float) -> bool:
        """Returns whether the value lies outside of the interval; True where there is none."""
        return self.low is None or self.high is None or not self.low <= value <= self.high


class ModelConditions(BaseModel):
    """A measured model. `capacity`: the tokens that the static buffers of compiled passes hold; null for eager ones,
    whose cache is as long as the sequence."""

    name: str
    revision: str | None
    dtype: str
    attention: str
    capacity: int | None


class PassPoint(BaseModel):
    """Passes over `query_length` tokens behind `context` cached ones: measured, the means of rounds, and the bounds:
    as many bytes copied, as many operations of matrix products."""

    query_length: int
    context: int
    seconds: Quartiles
    bandwidth_seconds: float
    arithmetic_seconds: float

    @property
    def bound_seconds(self) -> float:
        return max(self.bandwidth_seconds, self.arithmetic_seconds)

    @property
    def is_by_memory(self) -> bool:
        return self.bandwidth_seconds >= self.arithmetic_seconds

    @property
    def bound_name(self) -> str:
        return "bandwidth bound (of copies)" if self.is_by_memory else "arithmetic bound"


class ModelLimit(BaseModel):
    """One model. `bytes_read` and `operations`: of a pass over one token behind the context, whose bound the shares
    are parts of. `bytes_per_second`: of copies, read and written; `read_bytes_per_second`: of sums. `per_token`: of
    autoregressive decoding through the loop; `outside_passes`: what of it is no pass."""

    model: ModelConditions
    bytes_read: float
    operations: float
    bytes_per_second: Quartiles
    read_bytes_per_second: Quartiles
    operations_per_second: Quartiles
    per_token: Quartiles
    outside_passes: Quartiles
    share_of_bound: Ratio
    points: list[PassPoint]

    def at(self, query_length: int, context: int) -> PassPoint:
        return next(p for p in self.points if (p.query_length, p.context) == (query_length, context))


class DrafterLimit(ModelLimit):
    """A drafter, and its drafting within speculative decoding."""

    per_draft_token: Quartiles
    share_of_bound_drafting: Ratio


class StepLimit(BaseModel):
    """Steps of speculative decoding: seconds of one, and what of it is no pass."""

    num_draft_tokens: int
    seconds: Quartiles
    outside_passes: Quartiles


class BestLength(BaseModel):
    """The best draft length at an acceptance rate; `free_…`: if verifying cost one single-token pass."""

    acceptance_rate: float
    num_draft_tokens: int
    speedup: Ratio
    free_num_draft_tokens: int
    free_speedup: Ratio


class LimitReport(BaseModel):
    """The report on a pair, and the conditions of the measurement; times in seconds. `verification_cost`: of passes by
    query length, in single-token passes. `warnings`: about the figures of the verdict."""

    environment: dict[str, Any]
    seed: int
    repeats: int
    context: int
    target: ModelLimit
    drafter: DrafterLimit
    step: StepLimit
    cost_ratio: Ratio
    verification_cost: dict[int, Ratio]
    best: list[BestLength]
    verdict: str
    warnings: list[RowWarning]

    @property
    def costs(self) -> Costs[float]:
        return Costs(self.cost_ratio.value, {length: cost.value for length, cost in self.verification_cost.items()})
