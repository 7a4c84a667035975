"""Which draft length is best at an acceptance rate, by what drafting and verifying really cost."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from specbench.results.resampling import Array

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
