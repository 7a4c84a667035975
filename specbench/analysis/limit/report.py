"""What `specbench limit` says of a pair: bounds beside measurements, c, draft lengths, a verdict."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, FiniteFloat

from specbench.core.errors import ConfigError
from specbench.core.files import check_place, write_atomically
from specbench.results.bootstrap import Metric
from specbench.results.log_ratios import Array
from specbench.results.row import RowWarning

RATES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
Number = TypeVar("Number", float, Array)


@dataclass(frozen=True)
class Costs(Generic[Number]):
    """In single-token target passes: `cost_ratio` of a draft pass (c), and of verifying passes by query length; as
    numbers, or as arrays of equal shape, of which each place is one case."""

    cost_ratio: Number
    verifying: Mapping[int, Number]

    def verification(self, query_length: int) -> Number:
        """Of a pass over so many tokens; between measured lengths on a straight line, none beyond them."""
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
    """The draft length with the highest speed-up; 0 where drafting does not pay."""
    return max(range(max(costs.verifying)), key=lambda length: costs.speedup(acceptance_rate, length))


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
    warnings: list[RowWarning]

    @property
    def costs(self) -> Costs[float]:
        return Costs(self.cost_ratio.value, {length: cost.value for length, cost in self.verification_cost.items()})


def check_output(option: str, path: Path) -> None:
    """Raise ConfigError where the file of an option could not be written: asked before anything is measured."""
    try:
        check_place(path)
    except OSError as error:
        raise _refused(option, path, error) from error


def write(path: Path, report: LimitReport) -> None:
    """Replace the file of --output by the report, in one step. Raises ConfigError where it cannot be written."""
    try:
        write_atomically(path, report.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise _refused("--output", path, error) from error


def _refused(option: str, path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{option} {path}: cannot be written ({error.strerror or error}): name another file")
