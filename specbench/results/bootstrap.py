"""Ratios of sums over prompts with their 95 % intervals: the source of every metric that has an interval.

Prompts are resampled, each with all its repeats, turns and columns: AR and the method stay paired. For times of servers
that were up by turns, the parts of the run are (`Prompts.of_times`).

- ratios of sums (speed-ups, tokens/s, acceptance length): bootstrap-t of the log ratio (`log_ratios.studentized`);
  with 5 to 15 prompts its normal form (`log_ratios.normal`), with fewer none; of negative numbers, or where too few
  prompts differ, expanded percentiles.
- shares: bootstrap-t of the log odds, within 0 and 1; right and wrong answers, 5 to 15 prompts, and where too few
  differ: Wilson's (`wilson`).
- differences of scores, corpus scores: expanded percentiles.
- prompts that are all equal: shares and their differences keep a width, 1 − 0.025^(1/n) (`of_equal`); a ratio
  without bounds, such as a speed-up, has an interval without width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FiniteFloat, model_validator
from scipy import special

from specbench.results.log_ratios import (
    CONFIDENCE,
    NUM_RESAMPLES,
    TAILS,
    Array,
    are_equal,
    normal,
    percentiles,
    quick,
    ratio_of,
    studentized,
)

Column = NDArray[np.float64]
Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)
MIN_PROMPTS = (
    5  # with 5 the intervals of heavy-tailed speed-ups hold the truth in 87 % of all cases, with fewer in less
)
SMALL_SAMPLE = 30  # captions warn of intervals of fewer prompts


class FilePart(BaseModel):
    """Base of what a file of results holds: it is not changed, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Metric(FilePart):
    """A value with its 95 % interval; null where the value or the interval does not exist."""

    value: FiniteFloat | None = None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Metric":
        if (self.low is None) != (self.high is None) or (self.low is not None and self.value is None):
            raise ValueError("an interval has two ends and a value between them")
        return self


class Intervals(FilePart):
    """The way in which the intervals of a row were computed: the method for each kind of number, the level and the
    number of resamples."""

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


@dataclass(frozen=True)
class Prompts:
    """The prompt or part of each record, and the seed of the intervals. `is_quick`: intervals of ratios without bounds
    are `log_ratios.quick`, for a table that is shown while measuring."""

    cluster: NDArray[np.int64]  # [num_records], the number of the record's prompt or part
    seed: int
    is_quick: bool = False

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], seed: int, *, is_quick: bool = False) -> Self:
        return cls._of_keys(
            [(record["task"], record["subset"], record["example"]) for record in records], seed, is_quick
        )

    @classmethod
    def of_times(cls, records: Sequence[Mapping[str, Any]], seed: int) -> Self:
        """Returns what intervals of times resample: the parts of a run whose servers were up by turns, since the
        records of a part share the start of their servers; else prompts."""
        parts = [record.get("part") for record in records]
        return cls._of_keys(parts, seed) if len(set(parts)) > 1 else cls.of(records, seed)

    @classmethod
    def _of_keys(cls, keys: Sequence[Any], seed: int, is_quick: bool = False) -> Self:
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return cls(np.array([numbers[key] for key in keys], dtype=np.int64), seed, is_quick)

    def ratio(self, *values: Sequence[float] | Column, bounds: Bounds | None = None) -> Metric:
        """Returns Σ numerator / Σ denominator with its interval.

        `values`: two lists [num_records]; four, to divide by the ratio of a baseline; or eight, to divide one such
        speed-up by another. `bounds`: the least and greatest numerator / denominator that a record can have.
        """
        columns: list[Column] = [
            np.bincount(self.cluster, weights=np.asarray(column)).astype(np.float64) for column in values
        ]
        columns = _within(columns, bounds) or columns
        value = ratio(columns)
        low, high = (None, None) if value is None else interval(columns, self.seed, bounds, is_quick=self.is_quick)
        return Metric(value=value, low=low, high=high)

    def mean(self, values: Sequence[float | None], bounds: Bounds | None = None) -> Metric:
        """Returns the mean over the examples that have a value; values: [num_records]."""
        present = [float(value is not None) for value in values]
        return self.ratio([value or 0.0 for value in values], present, bounds=bounds)


def ratio(columns: Sequence[Column]) -> float | None:
    """Returns Σ first / Σ second; with four columns divided by Σ third / Σ fourth, and so on. None where it is
    undefined."""
    found = float(ratio_of(np.array([column.sum() for column in columns])))
    return found if np.isfinite(found) else None


def interval(
    columns: Sequence[Column], seed: int, bounds: Bounds | None = None, *, is_quick: bool = False
) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of a ratio of sums, of a ratio of two such ratios, or of a ratio of two of these.

    columns: two, four or eight arrays [num_prompts] (numerator, denominator, and those of the baseline; then the same
    of the other side). A prompt is resampled with all its columns. Prompts with a denominator of zero are left out.
    Fewer than MIN_PROMPTS prompts have no interval. `bounds`: of numerator / denominator of two columns. Without them,
    prompts that all have the same ratio have an interval without width: these prompts show no difference; others may.
    """
    usable = np.logical_and.reduce([denominator > 0 for denominator in columns[1::2]])
    drawn = np.array([column[usable] for column in columns], dtype=np.float64)
    if drawn.shape[1] < MIN_PROMPTS:
        return None, None
    inside = _within(drawn, bounds)
    if bounds is not None and inside is not None:
        low, high = bounded(np.array(inside), bounds, seed)
    elif are_equal(drawn):
        low = high = float(ratio_of(drawn.sum(axis=1)))
    elif is_quick:
        low, high = quick(drawn) or (np.nan, np.nan)
    else:
        low, high = studentized(drawn, seed) or normal(drawn) or percentiles(drawn, seed)
    return (float(low), float(high)) if np.isfinite(low) and np.isfinite(high) else (None, None)


def _within(columns: Sequence[Column] | Column, bounds: Bounds | None) -> list[Column] | None:
    """Returns the columns, with the rounding of float32 beyond the bounds removed; None where a value is out of
    bounds, as the score of a plug-in may be."""
    if bounds is None:
        return None
    least, most = (bound * columns[1] for bound in bounds)
    rounding = 1e-6 * (most - least)
    if (columns[0] < least - rounding).any() or (columns[0] > most + rounding).any():
        return None
    return [columns[0].clip(least, most), columns[1]]


def bounded(columns: Array, bounds: Bounds, seed: int) -> tuple[float, float]:
    """Returns the interval of a weighted mean of bounded values; columns [2, num_prompts]: sums of values, of weights.

    Equal values, as of a method that was right every time: `of_equal`. Bounds that begin at 0: bootstrap-t of the log
    odds, which are a log ratio of sums too; `wilson` where every prompt is at a bound (right or wrong), or too few
    differ. Differences, with bounds on both sides of 0: expanded percentiles; on a side to which no prompt differs they
    reach as far as for equal values.
    """
    value, (least, most) = float(columns[0].sum() / columns[1].sum()), bounds
    if are_equal(columns):
        return of_equal(value, bounds, columns.shape[1])
    if least < 0:
        return _of_differences(columns, bounds, seed)
    parts = np.stack([columns[0] - least * columns[1], most * columns[1] - columns[0]]).clip(min=0.0)
    odds = None if (parts.min(axis=0) == 0).all() else studentized(parts, seed)
    low, high = wilson(parts) if odds is None else (each / (1 + each) for each in odds)
    return least + (most - least) * low, least + (most - least) * high


def _of_differences(columns: Array, bounds: Bounds, seed: int) -> tuple[float, float]:
    low, high = percentiles(columns, seed)
    unseen = of_equal(float(columns[0].sum() / columns[1].sum()), bounds, columns.shape[1])
    low = min(low, unseen[0]) if columns[0].min() >= 0 else low
    return low, max(high, unseen[1]) if columns[0].max() <= 0 else high


def of_equal(value: float, bounds: Bounds, num_prompts: int) -> tuple[float, float]:
    """Returns the interval of equal values, which have no variance. n equal prompts exclude, at 97.5 % to each side,
    that more than a share 1 − 0.025^(1/n) of all prompts has another value (3.7 % for n = 100). That value may be at
    a bound."""
    unseen = 1 - TAILS[0] ** (1 / num_prompts)
    return value - unseen * (value - bounds[0]), value + unseen * (bounds[1] - value)


def wilson(parts: Array) -> tuple[float, float]:
    """Returns Wilson's interval of a share, with Student's t, for the effective number of answers: as many independent
    answers as give the variance of the share between prompts. Repeats of a prompt and prompts of uneven weight count
    for less; without such variance it is n − 1. The interval stays within 0 and 1. (Effective sample size: Korn and
    Graubard, Survey Methodology 24, 1998; with Wilson's: Kott and Carr, Journal of Official Statistics 13, 1997.)

    parts [2, num_prompts]: how much of each prompt's weight is in the share, and how much is not.
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
