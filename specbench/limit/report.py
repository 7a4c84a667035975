"""What `specbench limit` says of a pair: bounds beside measurements, c, draft lengths, a verdict."""

from typing import Any

from pydantic import BaseModel, FiniteFloat

from specbench.limit.drafting import Costs
from specbench.results.bootstrap import Metric
from specbench.results.row import Warning


class Spread(BaseModel):
    """The median of the rounds with its quartiles."""

    median: float
    low: float
    high: float


class Ratio(Metric):
    """A median over rounds, with its 95 % interval; of few rounds there is none."""

    value: FiniteFloat

    @property
    def digits(self) -> int:
        """Decimals that say something."""
        return 2 if self.value >= 0.1 else 3

    @property
    def rounded(self) -> str:
        return f"{self.value:.{self.digits}f}"

    @property
    def text(self) -> str:
        """The figure, with its interval where it has one."""
        if self.low is None or self.high is None:
            return self.rounded
        return f"{self.rounded} [{self.low:.{self.digits}f}, {self.high:.{self.digits}f}]"

    @property
    def span(self) -> str:
        """From where to where its interval reaches; it must have one."""
        return f"{self.low:.{self.digits}f} to {self.high:.{self.digits}f}"

    @property
    def width(self) -> float:
        """The end of the interval ÷ its start; 1 where there is none."""
        return self.high / self.low if self.low and self.high else 1.0

    def tells_from(self, value: float) -> bool:
        """Whether the value lies outside of the interval; yes where there is none."""
        return self.low is None or self.high is None or not self.low <= value <= self.high


class Described(BaseModel):
    """Which model it was. `capacity`: the tokens that the static buffers of compiled passes hold; null for eager ones,
    whose cache is as long as the sequence."""

    name: str
    revision: str | None
    dtype: str
    attention: str
    capacity: int | None


class Point(BaseModel):
    """Passes over `query_length` tokens behind `context` cached ones: measured, the means of rounds, and the bounds:
    as many bytes copied, as many operations of matrix products."""

    query_length: int
    context: int
    seconds: Spread
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

    model: Described
    bytes_read: float
    operations: float
    bytes_per_second: Spread
    read_bytes_per_second: Spread
    operations_per_second: Spread
    per_token: Spread
    outside_passes: Spread
    share_of_bound: Ratio
    points: list[Point]

    def at(self, query_length: int, context: int) -> Point:
        return next(p for p in self.points if (p.query_length, p.context) == (query_length, context))


class DrafterLimit(ModelLimit):
    """A drafter, and its drafting within speculative decoding."""

    per_draft_token: Spread
    share_of_bound_drafting: Ratio


class StepLimit(BaseModel):
    """Steps of speculative decoding: seconds of one, and what of it is no pass."""

    num_draft_tokens: int
    seconds: Spread
    outside_passes: Spread


class BestLength(BaseModel):
    """The best draft length at an acceptance rate; `free_…`: if verifying cost one single-token pass."""

    acceptance_rate: float
    num_draft_tokens: int
    speedup: Ratio
    free_num_draft_tokens: int
    free_speedup: Ratio


class LimitReport(BaseModel):
    """Everything that `specbench limit` says of a pair, and what it was measured on; times in seconds.
    `verification_cost`: of passes by query length, in single-token passes. `warnings`: of what the verdict rests on."""

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
    warnings: list[Warning]

    @property
    def costs(self) -> Costs[float]:
        return Costs(self.cost_ratio.value, {length: cost.value for length, cost in self.verification_cost.items()})
