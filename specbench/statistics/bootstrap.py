"""Ratios of sums over prompts with their 95 % intervals: the source of every metric that has an interval.

The bootstrap resamples prompts. A prompt keeps its repeats, turns and columns, so that AR and the method stay paired.
For times of servers that take turns, it resamples the parts of the run instead (`Resampler.of_times`).

- Ratios of sums (speed-ups, tokens/s, acceptance length): bootstrap-t of the log ratio
  (`studentized_interval`). With 5 to 15 prompts its normal form (`normal_interval`), with fewer
  no interval. For negative numbers, and where too few prompts differ, expanded percentiles.
- Shares: bootstrap-t of the log odds, within 0 and 1. Wilson's interval (`wilson_interval`) for right and wrong
  answers, for 5 to 15 prompts, and where too few prompts differ.
- Differences of scores, and corpus scores: expanded percentiles.
- If all prompts are equal, the interval of a share or of a difference of shares has the width 1 − 0.025^(1/n)
  (`equal_values_interval`). A ratio without bounds, such as a speed-up, then has an interval without width.

Coverage: how often the intervals hold a known truth, in % of 5,000 simulated runs each (± 0.6), with log-normal lengths
of sigma 1:

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

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FiniteFloat, model_validator

from specbench.core.metric import SHARE as SHARE
from specbench.core.metric import Bounds as Bounds
from specbench.statistics import special

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
    with np.errstate(all="ignore"):  # between two infinite ratios there is nothing to interpolate
        low, high = percentiles(ratios, expanded_confidence(num_prompts))
    return float(low), float(high)


def percentiles(drawn: Array, confidence: float) -> Array:
    """Returns the two ends between which this share of the resamples lies; drawn: [num_resamples] → [2]."""
    return np.asarray(np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]))


def stratified_confidence(variances: Array, sizes: NDArray[np.int64]) -> float:
    """Returns the share of the resamples within the interval of a mean over groups. As `expanded_confidence`, it allows
    for the factor n / (n - 1) that the variance of each group lacks, and for Student's t with the degrees of freedom of
    the summed variances (Welch, Biometrika 34, 1947; Satterthwaite, Biometrics Bulletin 2, 1946). Both arguments are
    [num_groups]."""
    total = float(variances.sum())
    if total == 0:
        return CONFIDENCE
    unbiased = variances * sizes / (sizes - 1)
    freedom = unbiased.sum() ** 2 / (unbiased**2 / (sizes - 1)).sum()
    t = special.stdtrit(freedom, TAILS[1])
    return float(2 * special.ndtr(t * np.sqrt(unbiased.sum() / total)) - 1)


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
        yield _counts(min(size, NUM_RESAMPLES - start), num_prompts, (seed, start)).astype(np.float64)


@lru_cache(maxsize=64)  # 64 MB: all metrics of a row, and all methods of a subset, resample the same prompts
def _counts(num_resamples: int, num_prompts: int, seed: tuple[int, int]) -> NDArray[np.integer]:
    drawn = _drawn(num_resamples, num_prompts, seed)
    drawn += num_prompts * np.arange(num_resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
    return counts.astype(np.min_scalar_type(counts.max()))


@lru_cache(maxsize=8)  # all numbers over the same groups resample the same prompts
def _group_counts(sizes: tuple[int, ...], seed: int) -> list[NDArray[np.integer]]:
    """Returns how often each unit of each group is drawn in each of NUM_RESAMPLES resamples."""
    generator = np.random.default_rng(seed)
    drawn = (generator.multinomial(size, np.full(size, 1 / size), size=NUM_RESAMPLES) for size in sizes)
    return [counts.astype(np.min_scalar_type(counts.max(initial=0))) for counts in drawn]


def _drawn(num_resamples: int, num_units: int, seed: tuple[int, int]) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(num_units, size=(num_resamples, num_units))


SIGNS = np.array([1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0])  # log ratio = Σ sign · log sum
MIN_STUDENTIZED = 16  # a resample of fewer prompts may hold only two or three, whose standard error says nothing
MIN_DIFFERENT = 10  # one of 20,000 resamples then holds none of these, and has no standard error
MIN_PRESENT = 5  # below MIN_STUDENTIZED prompts
MAX_PIVOT = 3.1824463052837078  # standard errors: Student's t with three degrees of freedom
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
        low, high = np.nanquantile(_pivots(columns, seed).clip(-MAX_PIVOT, MAX_PIVOT), TAILS)
    return _interval_around(_log_ratio(columns.sum(axis=1)), -high, -low, standard_error(columns))


def normal_interval(columns: Array) -> tuple[float, float] | None:
    """Returns exp(log ratio ± 1.96 `standard_error`), which includes Student's t; columns: [2, 4 or 8, num_prompts].
    Returns None for MIN_STUDENTIZED prompts and more, for negative numbers, and if fewer than MIN_PRESENT prompts have
    a value in one of the columns."""
    is_small = columns.shape[1] < MIN_STUDENTIZED
    if not is_small or (columns < 0).any() or np.count_nonzero(columns, axis=1).min() < MIN_PRESENT:
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


def _pivots(columns: Array, seed: int) -> Array:
    """Returns the distance of each resample's log ratio from the data's, in standard errors of the resample: [2, 4 or
    8, num_prompts] → [NUM_RESAMPLES].

    The squared error is Σ count · influence². The influence of a prompt is Σ sign · growth · share, with its `share` of
    the data's sum, and `growth` = the data's sum ÷ the resample's. With the data's influence, Σ sign · share, as first
    term, the others have the small weight sign · (growth − first growth). Every sum over prompts then is one of a few
    products of these terms, so that a product of matrices gives it for all resamples.
    """
    signs, totals = SIGNS[: len(columns)], columns.sum(axis=1)
    shares = columns / totals[:, None]
    terms = np.vstack([signs @ shares, shares[1:]])
    first, second = np.triu_indices(len(terms))
    summed = np.vstack([columns, terms[first] * terms[second]]).T
    sums = np.concatenate([counts @ summed for counts in resamples(columns.shape[1], seed)])
    growths = totals / sums[:, : len(columns)]
    weights = np.column_stack([growths[:, 0], signs[1:] * (growths[:, 1:] - growths[:, :1])])
    doubled = np.where(first == second, 1.0, 2.0)
    squares = (doubled * weights[:, first] * weights[:, second] * sums[:, len(columns) :]).sum(axis=1)
    log_ratios = np.log(sums[:, : len(columns)]) @ signs
    return np.asarray((log_ratios - _log_ratio(totals)) / np.sqrt(squares))


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


MIN_PROMPTS = 5  # with 5, intervals of heavy-tailed speed-ups hold the truth in 87 % of all cases; with fewer, in less
SMALL_SAMPLE = 30  # captions warn of intervals over fewer prompts


class FilePart(BaseModel):
    """Base class of the parts of result files. It is immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Estimate(FilePart):
    """A value with its 95 % interval; null where the value or the interval does not exist."""

    value: FiniteFloat | None = None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Estimate":
        if (self.low is None) != (self.high is None) or (self.low is not None and self.value is None):
            raise ValueError("an interval has two ends and a value between them")
        return self


class Intervals(FilePart):
    """How the intervals of a row were computed: the method for each kind of number, the confidence level and the number
    of resamples."""

    method: dict[str, str]
    level: FiniteFloat
    resamples: int


INTERVALS = Intervals(
    method={
        "ratios of sums": "bootstrap-t of the log ratio; below 16 prompts its normal form; "
        "of negative numbers or where too few prompts differ expanded percentiles",
        "shares": "bootstrap-t of the log odds; below 16 prompts or where too few differ Wilson",
        "shares of right and wrong": "Wilson",
        "differences, corpus scores": "expanded percentiles",
        "equal shares": "1 - 0.025^(1/n)",
        "fewer than 5 prompts": "none",
    },
    level=CONFIDENCE,
    resamples=NUM_RESAMPLES,
)


class HasUnit(Protocol):
    """What a record says about the unit that its answers belong to."""

    @property
    def task(self) -> str: ...
    @property
    def subset(self) -> str: ...
    @property
    def example(self) -> int: ...
    @property
    def repeat(self) -> int: ...
    @property
    def part(self) -> int | None: ...


@dataclass(frozen=True)
class Resampler:
    """Draws units with replacement, and gives statistics their 95 % intervals.

    A unit is a prompt with all its answers, a part or window of a run, a round of a benchmark. `cluster`: the unit of
    each value. `order`: the order of the prompts in which each value was measured, if these are a sample, too: then
    intervals of ratios and means cover prompts and orders (`over_orders`).

    - `ratio` and `mean`: of values, summed over units; the intervals are those of this module's docstring.
    - `sums`: the sums of groups of units in all resamples, for statistics over several groups; `of_sums`: any function
      of these sums, with its interval.
    - `medians`: the medians of values in all resamples; `of_resamples`: a value computed from them, with its interval.
    """

    cluster: NDArray[np.int64]  # [num_values], the number of the value's unit
    seed: int
    order: NDArray[np.int64] | None = None  # [num_values]

    @classmethod
    def of_units(cls, num_units: int, seed: int) -> Self:
        """Returns a resampler of units with one value each."""
        return cls(np.arange(num_units), seed)

    @classmethod
    def of(cls, records: Sequence[HasUnit], seed: int, in_orders: bool = False) -> Self:
        """Returns a resampler of prompts. `in_orders`: whether each repeat has a random order of the prompts, on which
        the values depend."""
        made = cls.of_keys([(record.task, record.subset, record.example) for record in records], seed)
        if not in_orders or len({record.repeat for record in records}) < 2:
            return made
        return replace(made, order=np.array([record.repeat for record in records], dtype=np.int64))

    @classmethod
    def of_times(cls, records: Sequence[HasUnit], seed: int, in_orders: bool = False) -> Self:
        """Returns the units to resample for intervals of times: the parts of a run if its servers took turns, since the
        records of a part share the start of their servers; otherwise prompts."""
        parts = [record.part for record in records]
        return cls.of_keys(parts, seed) if len(set(parts)) > 1 else cls.of(records, seed, in_orders)

    @classmethod
    def of_keys(cls, keys: Sequence[Hashable], seed: int) -> Self:
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return cls(np.array([numbers[key] for key in keys], dtype=np.int64), seed)

    def ratio(self, *values: Sequence[float] | Array, bounds: Bounds | None = None) -> Estimate:
        """Returns Σ numerator / Σ denominator with its interval. `values`: two lists [num_records]; four, to divide by
        the ratio of a baseline; or eight, to divide one such speed-up by another. `bounds`: the least and greatest
        value of numerator / denominator that a record can have."""
        columns: list[Array] = [
            np.bincount(self.cluster, weights=np.asarray(column)).astype(np.float64) for column in values
        ]
        columns = _clip_to_bounds(columns, bounds) or columns
        value = ratio(columns)
        low, high = (None, None) if value is None else interval(columns, self.seed, bounds)
        found = Estimate(value=value, low=low, high=high)
        if self.order is None or low is None:
            return found
        by_order = np.array([np.bincount(self.order, weights=np.asarray(column)) for column in values])
        return over_orders(found, ratio_of(by_order[:, np.unique(self.order)].T), bounds)

    def mean(self, values: Sequence[float | None], bounds: Bounds | None = None) -> Estimate:
        """Returns the mean over the examples that have a value; values: [num_records]."""
        present = [float(value is not None) for value in values]
        return self.ratio([value or 0.0 for value in values], present, bounds=bounds)

    def sums(self, groups: Sequence[Array]) -> list[Array]:
        """Returns the sums over the units of each group, first as measured and then in every resample. The units of a
        group are drawn together with all their numbers, so that these stay paired; each group keeps its size.

        groups: disjoint units, [..., num_units, num_columns] each → [..., 1 + NUM_RESAMPLES, num_columns] each."""
        drawn = _group_counts(tuple(group.shape[-2] for group in groups), self.seed)
        return [
            np.concatenate([group.sum(axis=-2, keepdims=True), counts.astype(np.float64) @ group], axis=-2)
            for group, counts in zip(groups, drawn, strict=True)
        ]

    def of_sums(
        self, groups: Sequence[Array], function: Callable[[Sequence[Array]], Array],
        least: float = -np.inf, most: float = np.inf,
    ) -> Estimate:  # fmt: skip
        """Returns a function of the sums of groups of units, with its interval.

        groups: [num_units, num_columns] each. function: takes the sums of each group, [num_resamples, num_columns] each
        → [num_resamples]. least, most: the bounds of its values.

        A convex function of noisy means (a variance, a maximum) is biased upwards, and every resample adds the same
        bias again. So the percentiles (`expanded_confidence`) are moved back by twice the bias of the resamples, and
        the interval is widened to include the value. A group of fewer than MIN_PROMPTS units allows no interval.
        """
        smallest = min(map(len, groups))
        if smallest < MIN_PROMPTS:
            value = float(function([group.sum(axis=0, keepdims=True) for group in groups])[0])
            return Estimate(value=value) if np.isfinite(value) else Estimate()
        value, *drawn = function(self.sums(groups)).tolist()
        resampled = np.array(drawn)[np.isfinite(drawn)]
        if not np.isfinite(value) or len(resampled) < NUM_RESAMPLES / 2:
            return Estimate(value=value if np.isfinite(value) else None)
        shift = 2 * (float(resampled.mean()) - value)
        low, high = (percentiles(resampled, expanded_confidence(smallest)) - shift).clip(least, most)
        return Estimate(value=value, low=min(value, float(low)), high=max(value, float(high)))

    def medians(self, values: Sequence[float] | Array) -> Array:
        """Returns the median over units, first as measured and then in every resample: [num_units] → [1 +
        NUM_RESAMPLES]."""
        found = np.asarray(values, dtype=np.float64)
        drawn = _drawn(NUM_RESAMPLES, len(found), (self.seed, 0))
        return np.append(np.median(found), np.median(found[drawn], axis=1))

    def of_resamples(self, values: Array) -> Estimate:
        """Returns a value with its percentiles. `values`: as measured, then in every resample, [1 + NUM_RESAMPLES]."""
        if len(self.cluster) < MIN_PROMPTS:
            return Estimate(value=float(values[0]))
        low, high = percentiles(values[1:], CONFIDENCE)
        return Estimate(value=float(values[0]), low=float(low), high=float(high))


def over_orders(found: Estimate, by_order: Array, bounds: Bounds | None = None) -> Estimate:
    """Returns a value whose interval over prompts also covers the orders of these prompts.

    The error of a mean over orders is that of its values in each order, with Student's t. The squared distances of the
    ends are added, as those of independent errors: on the log scale for ratios, and within `bounds`, if there are some.
    Few orders give wide intervals: with two, t is 12.7, with five 2.8. Without a value in some order there is none.
    by_order: [num_orders]."""
    if found.value is None or found.low is None or found.high is None:
        return found
    is_log = bounds is None and found.low > 0
    if not np.isfinite(by_order).all() or (is_log and not (by_order > 0).all()):
        return Estimate(value=found.value)
    ends = np.array([found.low, found.value, found.high])
    low, value, high = np.log(ends) if is_log else ends
    values = np.log(by_order) if is_log else by_order
    number = len(values)
    error = float(special.stdtrit(number - 1, TAILS[1]) * values.std(ddof=1) / np.sqrt(number))
    with np.errstate(over="ignore"):
        widened = value - np.hypot(value - low, error), value + np.hypot(high - value, error)
        first, last = np.exp(widened) if is_log else widened
    if bounds is not None:
        first, last = max(float(first), bounds[0]), min(float(last), bounds[1])
    return (
        Estimate(value=found.value, low=float(first), high=float(last))
        if np.isfinite(last)
        else Estimate(value=found.value)
    )


def ratio(columns: Sequence[Array]) -> float | None:
    """Returns Σ first / Σ second; of four columns, this ratio divided by Σ third / Σ fourth; of eight, the ratio of two
    such ratios. None where it is undefined."""
    found = float(ratio_of(np.array([column.sum() for column in columns])))
    return found if np.isfinite(found) else None


def interval(columns: Sequence[Array], seed: int, bounds: Bounds | None = None) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of `ratio`.

    columns: two, four or eight arrays [num_prompts]: numerator and denominator, then those of the baseline, then the
    same four of the other side. Prompts with a denominator of zero are left out. Fewer than MIN_PROMPTS prompts
    have no interval. `bounds`: the bounds of numerator / denominator, for two columns. If all prompts have the same
    ratio and there are no bounds, the interval has no width: these prompts show no difference, but others may.
    """
    usable = np.logical_and.reduce([denominator > 0 for denominator in columns[1::2]])
    drawn = np.array([column[usable] for column in columns], dtype=np.float64)
    if drawn.shape[1] < MIN_PROMPTS:
        return None, None
    inside = _clip_to_bounds(drawn, bounds)
    if bounds is not None and inside is not None:
        low, high = bounded_interval(np.array(inside), bounds, seed)
    elif are_equal(drawn):
        low = high = float(ratio_of(drawn.sum(axis=1)))
    else:
        low, high = studentized_interval(drawn, seed) or normal_interval(drawn) or percentile_interval(drawn, seed)
    return (float(low), float(high)) if np.isfinite(low) and np.isfinite(high) else (None, None)


def _clip_to_bounds(columns: Sequence[Array] | Array, bounds: Bounds | None) -> list[Array] | None:
    """Returns the columns, clipped where float32 rounding put a value beyond a bound; None if a value is out of bounds,
    as the score of a plug-in may be."""
    if bounds is None:
        return None
    least, most = (bound * columns[1] for bound in bounds)
    rounding = 1e-6 * (most - least)
    if (columns[0] < least - rounding).any() or (columns[0] > most + rounding).any():
        return None
    return [columns[0].clip(least, most), columns[1]]


def bounded_interval(columns: Array, bounds: Bounds, seed: int) -> tuple[float, float]:
    """Returns the interval of a weighted mean of bounded values; columns [2, num_prompts]: sums of values, of weights.

    If all values are equal, for example if a method was always right: `equal_values_interval`. For shares, whose bounds
    begin at 0: bootstrap-t of the log odds, which are a log ratio of sums too; or `wilson_interval` if every prompt is
    at a bound (right or wrong), or too few prompts differ. For differences, with bounds on both sides of 0: expanded
    percentiles. Towards a side on which no prompt lies, they reach as far as for equal values.
    """
    value, (least, most) = float(columns[0].sum() / columns[1].sum()), bounds
    if are_equal(columns):
        return equal_values_interval(value, bounds, columns.shape[1])
    if least < 0:
        low, high = percentile_interval(columns, seed)
        unseen_low, unseen_high = equal_values_interval(value, bounds, columns.shape[1])
        low = min(low, unseen_low) if columns[0].min() >= 0 else low
        return low, max(high, unseen_high) if columns[0].max() <= 0 else high
    parts = np.stack([columns[0] - least * columns[1], most * columns[1] - columns[0]]).clip(min=0.0)
    odds = None if (parts.min(axis=0) == 0).all() else studentized_interval(parts, seed)
    low, high = wilson_interval(parts) if odds is None else (each / (1 + each) for each in odds)
    return least + (most - least) * low, least + (most - least) * high


def equal_values_interval(value: float, bounds: Bounds, num_prompts: int) -> tuple[float, float]:
    """Returns the interval of equal values, which have no variance. n equal prompts exclude, with 97.5 % confidence on
    each side, that more than a share 1 − 0.025^(1/n) of all prompts has another value (3.7 % for n = 100). These other
    prompts are assumed to lie at a bound."""
    unseen = 1 - TAILS[0] ** (1 / num_prompts)
    return value - unseen * (value - bounds[0]), value + unseen * (bounds[1] - value)


def wilson_interval(parts: Array) -> tuple[float, float]:
    """Returns Wilson's interval of a share, with Student's t, for the effective number of answers: the number of
    independent answers with the same variance as the share has between prompts. Repeats of a prompt and prompts of
    uneven weight lower it; without variance it is n − 1. The interval stays within 0 and 1. (Effective sample size:
    Korn and Graubard, Survey Methodology 24, 1998; in Wilson's interval: Kott and Carr, Journal of Official Statistics
    13, 1997.)

    parts [2, num_prompts]: the weight of each prompt inside the share and outside it.
    """
    values, weights = parts[0], parts.sum(axis=0)
    num_prompts, total = len(values), weights.sum()
    share = values.sum() / total
    residuals = (values - share * weights) / (total - weights)  # each over what the others weigh: the jackknife's
    variance = np.square(residuals).sum() * (num_prompts - 1) / num_prompts
    num_effective = share * (1 - share) / variance if variance > 0 else num_prompts - 1
    t = special.stdtrit(num_prompts - 1, TAILS[1])
    spread = t**2 / num_effective
    centre = (share + spread / 2) / (1 + spread)
    half = np.sqrt(spread * share * (1 - share) + spread**2 / 4) / (1 + spread)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))
