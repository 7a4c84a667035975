"""Ratios of sums over prompts with their 95 % intervals: the source of every metric that has an interval.

The bootstrap resamples prompts. A prompt keeps its repeats, turns and columns, so that AR and the method stay paired.
For times of servers that take turns, it resamples the parts of the run instead (`Prompts.of_times`).

- Ratios of sums (speed-ups, tokens/s, acceptance length): bootstrap-t of the log ratio
  (`log_ratios.studentized_interval`). With 5 to 15 prompts its normal form (`log_ratios.normal_interval`), with fewer
  no interval. For negative numbers, and where too few prompts differ, expanded percentiles.
- Shares: bootstrap-t of the log odds, within 0 and 1. Wilson's interval (`wilson_interval`) for right and wrong
  answers, for 5 to 15 prompts, and where too few prompts differ.
- Differences of scores, and corpus scores: expanded percentiles.
- If all prompts are equal, the interval of a share or of a difference of shares has the width 1 − 0.025^(1/n)
  (`equal_values_interval`). A ratio without bounds, such as a speed-up, then has an interval without width.
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
    normal_interval,
    percentile_interval,
    quick_interval,
    ratio_of,
    studentized_interval,
)

Column = NDArray[np.float64]
Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)
MIN_PROMPTS = 5  # with 5, intervals of heavy-tailed speed-ups hold the truth in 87 % of all cases; with fewer, in less
SMALL_SAMPLE = 30  # captions warn of intervals over fewer prompts


class FilePart(BaseModel):
    """Base class of the parts of result files. It is immutable, and unknown keys are errors."""

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


@dataclass(frozen=True)
class Prompts:
    """The prompt or part of each record, and the seed of the intervals. `is_quick`: ratios without bounds get the
    `log_ratios.quick_interval`, for a table that is shown during a run."""

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
        """Returns the units to resample for intervals of times: the parts of a run if its servers took turns, since the
        records of a part share the start of their servers; otherwise prompts."""
        parts = [record.get("part") for record in records]
        return cls._of_keys(parts, seed) if len(set(parts)) > 1 else cls.of(records, seed)

    @classmethod
    def _of_keys(cls, keys: Sequence[Any], seed: int, is_quick: bool = False) -> Self:
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return cls(np.array([numbers[key] for key in keys], dtype=np.int64), seed, is_quick)

    def ratio(self, *values: Sequence[float] | Column, bounds: Bounds | None = None) -> Metric:
        """Returns Σ numerator / Σ denominator with its interval.

        `values`: two lists [num_records]; four, to divide by the ratio of a baseline; or eight, to divide one such
        speed-up by another. `bounds`: the least and greatest value of numerator / denominator that a record can have.
        """
        columns: list[Column] = [
            np.bincount(self.cluster, weights=np.asarray(column)).astype(np.float64) for column in values
        ]
        columns = _clip_to_bounds(columns, bounds) or columns
        value = ratio(columns)
        low, high = (None, None) if value is None else interval(columns, self.seed, bounds, is_quick=self.is_quick)
        return Metric(value=value, low=low, high=high)

    def mean(self, values: Sequence[float | None], bounds: Bounds | None = None) -> Metric:
        """Returns the mean over the examples that have a value; values: [num_records]."""
        present = [float(value is not None) for value in values]
        return self.ratio([value or 0.0 for value in values], present, bounds=bounds)


def ratio(columns: Sequence[Column]) -> float | None:
    """Returns Σ first / Σ second; of four columns, this ratio divided by Σ third / Σ fourth; of eight, the ratio of two
    such ratios. None where it is undefined."""
    found = float(ratio_of(np.array([column.sum() for column in columns])))
    return found if np.isfinite(found) else None


def interval(
    columns: Sequence[Column], seed: int, bounds: Bounds | None = None, *, is_quick: bool = False
) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of `ratio`.

    columns: two, four or eight arrays [num_prompts]: numerator and denominator, then those of the baseline, then the
    same four of the other side. Prompts with a denominator of zero are left out. Fewer than MIN_PROMPTS prompts have no
    interval. `bounds`: the bounds of numerator / denominator, for two columns. If all prompts have the same ratio and
    there are no bounds, the interval has no width: these prompts show no difference, but others may.
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
    elif is_quick:
        low, high = quick_interval(drawn) or (np.nan, np.nan)
    else:
        low, high = studentized_interval(drawn, seed) or normal_interval(drawn) or percentile_interval(drawn, seed)
    return (float(low), float(high)) if np.isfinite(low) and np.isfinite(high) else (None, None)


def _clip_to_bounds(columns: Sequence[Column] | Column, bounds: Bounds | None) -> list[Column] | None:
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
