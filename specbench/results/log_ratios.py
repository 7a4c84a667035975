"""95 % intervals of ratios of sums, computed on the log scale: bootstrap-t, and its normal form for few prompts.

Coverage: how often the intervals of `results.bootstrap` hold a known truth, in % of 5,000 simulated runs each (± 0.6),
with log-normal lengths of sigma 1:

    population                        n    percentile    BCa    specbench
    speed-up that falls with length    5         66.5   67.2         86.9
                                      10         74.8   76.7         88.7
                                      16         78.8   80.5         93.8
                                      30         82.7   84.5         93.7
                                     100         88.6   88.8         94.5
                                     250         90.9   90.4         95.2

The coverage for speed-ups that rise with length, for acceptance rates and for accuracies is 90.7 to 99.3 %.

The price is width. The median interval of a speed-up is about twice as wide as the percentile interval at n = 5 and 16,
and 1.3 times at n = 100. The 95th percentile of the widths is four times as large at n = 16 (3.3 and 0.8, for a
speed-up of 2), and more than twice at n = 100. docs/measured/coverage.md has more populations and their widths.
"""

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
    """Returns sum 0 ÷ sum 1; of four columns, this ratio ÷ (sum 2 ÷ sum 3); of eight, the ratio of the first four ÷ the
    ratio of the last four: [..., num_columns] → [...]."""
    half = sums.shape[-1] // 2
    with np.errstate(all="ignore"):
        if half == 1:
            return np.asarray(sums[..., 0] / sums[..., 1])
        return np.asarray(ratio_of(sums[..., :half]) / ratio_of(sums[..., half:]))


def percentile_interval(columns: Array, seed: int) -> tuple[float, float]:
    """Returns the expanded percentiles of the ratio over the resamples; columns: [2, 4 or 8, num_prompts]."""
    num_prompts = columns.shape[1]
    ratios = np.concatenate([ratio_of(counts @ columns.T) for counts in resamples(num_prompts, seed)])
    share = expanded_confidence(num_prompts)
    with np.errstate(all="ignore"):  # between two infinite ratios there is nothing to interpolate
        low, high = np.quantile(ratios, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def expanded_confidence(num_prompts: int) -> float:
    """Returns the share of the resamples within an expanded percentile interval. Plain percentiles are too narrow for
    few prompts: the expanded ones allow for Student's t and for the factor n / (n - 1) that the variance of resamples
    lacks (Hesterberg, What Teachers Should Know About the Bootstrap, arXiv:1411.5279, section 5.3)."""
    t = special.stdtrit(num_prompts - 1, TAILS[1])
    return float(2 * special.ndtr(t * np.sqrt(num_prompts / (num_prompts - 1))) - 1)


def resamples(num_prompts: int, seed: int) -> Iterator[Array]:
    """Yields how often each prompt is drawn in each of NUM_RESAMPLES resamples, in batches [num_resamples,
    num_prompts]."""
    size = max(1, BATCH // num_prompts)
    for start in range(0, NUM_RESAMPLES, size):
        yield _counts(min(size, NUM_RESAMPLES - start), num_prompts, (seed, start))


@lru_cache(maxsize=4)  # all metrics of a row resample the same prompts
def _counts(num_resamples: int, num_prompts: int, seed: tuple[int, int]) -> Array:
    drawn = np.random.default_rng(seed).integers(num_prompts, size=(num_resamples, num_prompts))
    drawn += num_prompts * np.arange(num_resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)
    counts.flags.writeable = False
    return counts


SIGNS = np.array([1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0])  # log ratio = Σ sign · log sum
MIN_STUDENTIZED = 16  # a resample of fewer prompts may hold only two or three, whose standard error says nothing
MIN_DIFFERENT = 10  # one of 20,000 resamples then holds none of these, and has no standard error
MIN_PRESENT = 5  # below MIN_STUDENTIZED prompts
MAX_PIVOT = special.stdtrit(3, TAILS[1])  # 3.18 standard errors: Student's t with three degrees of freedom
MAX_LEVERAGE = 0.5  # the largest leverage that the standard error counts for a prompt


def studentized_interval(columns: Array, seed: int) -> tuple[float, float] | None:
    """Returns the bootstrap-t interval of a ratio of sums.

    columns: [2, 4 or 8, num_prompts]. The log ratio of every resample is divided by its own standard error, so that the
    interval reaches further to the side on which long prompts may be missing (Efron and Tibshirani, An Introduction to
    the Bootstrap, chapter 12). The error of a resample is the delta method's: the influence of a prompt is the signed
    sum of its shares of the sums. The error of the data is `standard_error`, which is larger. The interval ends at most
    MAX_PIVOT of these errors away from the ratio, since quantiles of pivots of few prompts can be any number.

    Returns None, whatever the seed, for negative numbers, for fewer than MIN_STUDENTIZED prompts, and if fewer than
    MIN_DIFFERENT prompts have a value in one of the columns, or have another ratio than the median prompt.
    """
    if columns.shape[1] < MIN_STUDENTIZED or (columns < 0).any() or _num_different(columns) < MIN_DIFFERENT:
        return None
    with np.errstate(all="ignore"):
        log_ratio = _log_ratio(columns.sum(axis=1))
        pivots = np.concatenate([_pivots(counts, columns, log_ratio) for counts in resamples(columns.shape[1], seed)])
        low, high = np.nanquantile(pivots.clip(-MAX_PIVOT, MAX_PIVOT), TAILS)
    return _interval_around(log_ratio, -high, -low, standard_error(columns))


def normal_interval(columns: Array) -> tuple[float, float] | None:
    """Returns the `quick_interval` of fewer than MIN_STUDENTIZED prompts; None for more."""
    return quick_interval(columns) if columns.shape[1] < MIN_STUDENTIZED else None


def quick_interval(columns: Array) -> tuple[float, float] | None:
    """Returns exp(log ratio ± 1.96 `standard_error`), which includes Student's t; columns: [2, 4 or 8, num_prompts].

    It needs no resamples. Returns None for negative numbers, and if fewer than MIN_PRESENT prompts have a value in one
    of the columns.
    """
    if (columns < 0).any() or np.count_nonzero(columns, axis=1).min() < MIN_PRESENT:
        return None
    low, high = special.ndtri(TAILS)
    return _interval_around(_log_ratio(columns.sum(axis=1)), low, high, standard_error(columns))


def _interval_around(log_ratio: float, low: float, high: float, error: float) -> tuple[float, float]:
    with np.errstate(over="ignore"):
        return float(np.exp(log_ratio + low * error)), float(np.exp(log_ratio + high * error))


def _log_ratio(sums: Array) -> float:
    return float(SIGNS[: len(sums)] @ np.log(sums))


def _num_different(columns: Array) -> int:
    """Returns the smaller of two counts: prompts with another ratio than the median prompt, and prompts with a value in
    the emptiest column."""
    with np.errstate(all="ignore"):
        ratios = SIGNS[: len(columns)] @ np.log(columns)
        same = np.isclose(ratios, np.median(ratios), rtol=0, atol=1e-9, equal_nan=True)
    return int(min(np.count_nonzero(columns, axis=1).min(), np.count_nonzero(~same)))


def _pivots(counts: Array, columns: Array, log_ratio: float) -> Array:
    """Returns the distance of each resample's log ratio from the data's, in standard errors of the resample; counts:
    [num_resamples, num_prompts] → [num_resamples]."""
    signs = SIGNS[: len(columns)]
    sums = counts @ columns.T
    influences = (signs / sums) @ columns
    influences *= influences
    influences *= counts
    return np.asarray((np.log(sums) @ signs - log_ratio) / np.sqrt(influences.sum(axis=1)))


def standard_error(columns: Array) -> float:
    """Returns the standard error of the log ratio; columns: [2, 4 or 8, num_prompts].

    The error of the delta method is too small if the sums depend on a few long prompts, for two reasons. First, a long
    prompt pulls the ratio towards itself and hides part of its influence. So each influence is divided by 1 − the
    prompt's largest share of a sum, as HC3 divides residuals by 1 − their leverage (MacKinnon and White, Journal of
    Econometrics 29, 1985). The share counts as MAX_LEVERAGE at most, or a prompt that holds nearly all could make the
    error any number. Second, the variance is itself uncertain. So Student's t is used, with the degrees of freedom of a
    variance of influences with this kurtosis (Satterthwaite, Biometrics Bulletin 2, 1946), at most n − 1.
    """
    shares = columns / columns.sum(axis=1, keepdims=True)
    influences = SIGNS[: len(columns)] @ shares
    num_prompts = len(influences)
    kurtosis = num_prompts * (influences**4).sum() / (influences**2).sum() ** 2
    freedom = min(num_prompts - 1, 2 * num_prompts / max(kurtosis - 1, 1e-9))
    widening = special.stdtrit(freedom, TAILS[1]) / special.ndtri(TAILS[1])
    leverages = np.minimum(shares.max(axis=0), MAX_LEVERAGE)
    return float(widening * np.sqrt(np.square(influences / (1 - leverages)).sum()))


def bonferroni(num_intervals: int, tail: float, freedom: float = np.inf) -> float:
    """Returns the factor by which to widen `num_intervals` 95 % intervals, so that the truth lies beyond any of their
    upper ends with a probability of at most `tail`, and likewise for the lower ends (Bonferroni; Student's t)."""
    return float(special.stdtrit(freedom, 1 - tail / max(1, num_intervals)) / special.stdtrit(freedom, TAILS[1]))


def are_equal(columns: Array) -> bool:
    """Returns whether no prompt influences the ratio of the sums, so that to first order every resample has the same
    ratio. In [2, num_prompts] every prompt has the same ratio. In [4 or 8, num_prompts] the shares of every prompt
    cancel, as in the comparison of a method with itself."""
    sums = columns.sum(axis=1)
    ratio = sums[0] / sums[1]
    if len(columns) == 2:
        return bool((abs(columns[0] - ratio * columns[1]) <= 1e-12 * abs(ratio) * columns[1]).all())
    with np.errstate(all="ignore"):
        shares = columns / sums[:, None]
    return bool((abs(SIGNS[: len(columns)] @ shares) <= 1e-12 * shares.max(axis=0)).all())
