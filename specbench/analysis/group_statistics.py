"""Statistics over groups: variance, max/min, Spearman's ρ, and intervals of functions of several groups."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specbench.results.bootstrap import MIN_PROMPTS, NUM_RESAMPLES, Metric, expanded_confidence

Array = NDArray[np.float64]
Function = Callable[[Sequence[Array]], Array]


def variance(values: Array) -> Array:
    """Returns (1/m) Σ (a − mean)² over the last axis."""
    return np.asarray(values.var(axis=-1))


def max_over_min(values: Array) -> Array:
    """Returns the largest ÷ the smallest value over the last axis; infinite if the smallest is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(values.max(axis=-1) / values.min(axis=-1))


def spearman(ranked: Array, values: Array) -> Array:
    """Returns Spearman's ρ of `ranked` [m] or [..., m] and `values` [..., m] over the last axis; nan if either is
    constant or m < 3."""
    ranked = np.broadcast_to(ranked, values.shape)
    if values.shape[-1] < 3:
        return np.full(values.shape[:-1], np.nan)
    a, b = (_centred(stats.rankdata(each, axis=-1)) for each in (ranked, values))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1)))


def _centred(ranks: Array) -> Array:
    return np.asarray(ranks - ranks.mean(axis=-1, keepdims=True))


def ratios(sums: Sequence[Array], over: int, under: int) -> Array:
    """Returns column `over` ÷ column `under` of every group: m arrays [..., num_columns] → [..., m]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack([each[..., over] / each[..., under] for each in sums], axis=-1)


def estimate(
    groups: Sequence[Array], function: Function, seed: int, least: float = -np.inf, most: float = np.inf
) -> Metric:
    """Returns a function of the sums over prompts, with its 95 % bootstrap interval.

    groups: for each group the numbers of its prompts [num_prompts, num_columns]. function: takes the sums of each
    group, m arrays [num_resamples, num_columns] → [num_resamples]. least, most: the bounds of its values.

    The prompts of each group are resampled with all their columns, so that the numbers of two drafters in one row are
    paired. A convex function of noisy means (𝒰, a variance, a maximum) is biased upwards, and every resample adds the
    same bias again. The expanded percentiles (bootstrap.expanded) are therefore moved back by twice the bias of the
    resamples, and the interval is widened to include the value. There is no interval if a group has fewer than
    MIN_PROMPTS prompts.
    """
    value = float(function([prompts.sum(axis=0, keepdims=True) for prompts in groups])[0])
    if not np.isfinite(value):
        return Metric()
    smallest = min(len(prompts) for prompts in groups)
    if smallest < MIN_PROMPTS:
        return Metric(value=value)
    generator = np.random.default_rng(seed)
    drawn = function([_resampled(prompts, generator) for prompts in groups])
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < NUM_RESAMPLES / 2:
        return Metric(value=value)
    confidence = expanded_confidence(smallest)
    shift = 2 * (float(drawn.mean()) - value)
    low, high = (np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]) - shift).clip(least, most)
    return Metric(value=value, low=min(value, float(low)), high=max(value, float(high)))


def quality_weighted(
    rates: Array, statistics: Array, score: Callable[[Array], Array], seed: int, bounds: tuple[float, float]
) -> Metric:
    """Returns the mean acceptance rate times a score, with its interval. The rates and the statistics of a prompt are
    resampled together.

    rates: the sum and the number of rates, [num_prompts, 2]. statistics: [num_prompts, num_statistics]. score: takes
    the sums of the statistics, [num_resamples, num_statistics] → [num_resamples]. bounds: of the product.
    """
    both = np.hstack([rates, statistics])
    return estimate([both], lambda sums: ratios(sums, 0, 1)[..., 0] * score(sums[0][:, 2:]), seed, *bounds)


def _resampled(prompts: Array, generator: np.random.Generator) -> Array:
    """Returns the sums over prompts drawn with replacement: [num_prompts, num_columns] → [NUM_RESAMPLES,
    num_columns]."""
    num_prompts = len(prompts)
    counts = generator.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), size=NUM_RESAMPLES)
    return np.asarray(counts @ prompts)
