"""Prompts drawn anew with replacement, each with all its columns, and the percentiles of a ratio of sums over them."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]
NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
BATCH = 2**20  # numbers of one array at a time


def ratio_of(sums: Array) -> Array:
    """Sum 0 ÷ sum 1; with four columns ÷ (sum 2 ÷ sum 3); with eight the ratio of the first four ÷ that of the last:
    [..., num_columns] → [...]."""
    half = sums.shape[-1] // 2
    with np.errstate(all="ignore"):
        if half == 1:
            return np.asarray(sums[..., 0] / sums[..., 1])
        return np.asarray(ratio_of(sums[..., :half]) / ratio_of(sums[..., half:]))


def percentiles(columns: Array, seed: int) -> tuple[float, float]:
    """Expanded percentiles of the ratio over the resamples; columns: [2, 4 or 8, num_prompts]."""
    num_prompts = columns.shape[1]
    ratios = np.concatenate([ratio_of(counts @ columns.T) for counts in resamples(num_prompts, seed)])
    share = expanded(num_prompts)
    with np.errstate(all="ignore"):  # between two infinite ratios there is nothing to interpolate
        low, high = np.quantile(ratios, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def expanded(num_prompts: int) -> float:
    """The share of the resamples that a percentile interval holds. Expanded percentiles: the tails are moved out as far
    as Student's t and the variance's missing n / (n - 1) ask for, or few prompts would get intervals that are too
    narrow (Hesterberg, What Teachers Should Know About the Bootstrap, arXiv:1411.5279, section 5.3)."""
    t = special.stdtrit(num_prompts - 1, TAILS[1])
    return float(2 * special.ndtr(t * np.sqrt(num_prompts / (num_prompts - 1))) - 1)


def resamples(num_prompts: int, seed: int) -> Iterator[Array]:
    """How often each prompt is drawn in each of NUM_RESAMPLES resamples, in batches [num_resamples, num_prompts]."""
    size = max(1, BATCH // num_prompts)
    for start in range(0, NUM_RESAMPLES, size):
        yield _counts(min(size, NUM_RESAMPLES - start), num_prompts, (seed, start))


@lru_cache(maxsize=4)  # all metrics of a row are of the same prompts
def _counts(num_resamples: int, num_prompts: int, seed: tuple[int, int]) -> Array:
    drawn = np.random.default_rng(seed).integers(num_prompts, size=(num_resamples, num_prompts))
    drawn += num_prompts * np.arange(num_resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)
    counts.flags.writeable = False
    return counts
