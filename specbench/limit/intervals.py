"""Ratios of medians over rounds, with 95 % intervals: a round is drawn with everything that was measured in it.

Percentiles of resampled rounds, of a ratio of two medians, hold it in 94 to 96 % of 2,000 simulated measurements of 5,
9 or 15 rounds, whether times are normal or log-normal with sigma 1. Fewer than MIN_ROUNDS have no interval.
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

    def medians(self, values: Sequence[float]) -> Array:
        """Of a quantity, [num_rounds], in each draw: [1 + NUM_RESAMPLES]."""
        return np.asarray(np.median(np.asarray(values, dtype=np.float64)[self._draws], axis=1))

    def ratio(self, values: Array) -> Ratio:
        """What was computed from medians, [1 + NUM_RESAMPLES], with its interval."""
        if self.num_rounds < MIN_ROUNDS:
            return Ratio(value=float(values[0]))
        low, high = np.quantile(values[1:], TAILS)
        return Ratio(value=float(values[0]), low=float(low), high=float(high))
