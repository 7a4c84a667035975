"""Medians of ratios over rounds, with 95 % intervals: both sides of a ratio were measured in the same round, which is
drawn with everything that was measured in it, so that slow rounds slow both.

Intervals are percentiles of resampled rounds, of a median of ratios. Fewer than MIN_ROUNDS have no interval.
"""

from collections.abc import Sequence

import numpy as np

from specbench.limit.report import Ratio
from specbench.results.bootstrap import MIN_PROMPTS
from specbench.results.resampling import NUM_RESAMPLES, TAILS, Array

MIN_ROUNDS = MIN_PROMPTS


class Draws:
    """Draws of rounds: first all as they were, then NUM_RESAMPLES with replacement."""

    def __init__(self, num_rounds: int, seed: int) -> None:
        self.num_rounds = num_rounds
        drawn = np.random.default_rng(seed).integers(num_rounds, size=(NUM_RESAMPLES, num_rounds))
        self._draws = np.vstack([np.arange(num_rounds), drawn])

    def ratios(self, above: Sequence[float], below: Sequence[float]) -> Array:
        """The median of what two quantities, [num_rounds], are ÷ one another, in each draw: [1 + NUM_RESAMPLES]."""
        by_round = np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64)
        return np.asarray(np.median(by_round[self._draws], axis=1))

    def ratio(self, values: Array) -> Ratio:
        """What was computed from such medians, [1 + NUM_RESAMPLES], with its interval."""
        if self.num_rounds < MIN_ROUNDS:
            return Ratio(value=float(values[0]))
        low, high = np.quantile(values[1:], TAILS)
        return Ratio(value=float(values[0]), low=float(low), high=float(high))
