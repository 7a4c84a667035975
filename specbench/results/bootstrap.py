"""Ratios of sums over prompts, with intervals by resampling prompts: every metric that has an interval is made here."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FiniteFloat
from scipy import stats

Column = NDArray[np.float64]
NUM_RESAMPLES = 2000
CONFIDENCE = 0.95
MIN_PROMPTS = 5  # with fewer, no resampling of heavy-tailed times covers the true value in 90 % of all cases


class Metric(BaseModel):
    """A value with its 95 % interval; null where the value or the interval does not exist."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: FiniteFloat | None = None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None


@dataclass(frozen=True)
class Prompts:
    """Which records belong to one prompt, and the seed of the intervals."""

    cluster: NDArray[np.int64]  # [num_records], the number of the record's prompt
    seed: int

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], seed: int) -> Self:
        keys = [(record["task"], record["subset"], record["example"]) for record in records]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return cls(np.array([numbers[key] for key in keys], dtype=np.int64), seed)

    def ratio(self, *values: Sequence[float]) -> Metric:
        """Σ numerator / Σ denominator, or that divided by a baseline's; values: two or four lists [num_records]."""
        columns: list[Column] = [
            np.bincount(self.cluster, weights=np.asarray(column)).astype(np.float64) for column in values
        ]
        value = ratio(columns)
        low, high = (None, None) if value is None else interval(columns, self.seed)
        return Metric(value=value, low=low, high=high)

    def mean(self, values: Sequence[float | None]) -> Metric:
        """Mean over the examples that have a value; values: [num_records]."""
        return self.ratio([value or 0.0 for value in values], [float(value is not None) for value in values])


def ratio(columns: Sequence[Column]) -> float | None:
    """Σ first / Σ second, with four columns divided by Σ third / Σ fourth; null where that is undefined."""
    return _finite(_ratio(*columns))


def interval(columns: Sequence[Column], seed: int) -> tuple[float | None, float | None]:
    """95 % paired bootstrap interval of a ratio of sums, or of a ratio of two such ratios.

    columns: two or four arrays [num_prompts] (numerator, denominator, and those of the baseline); a prompt is drawn
    with all its columns. Prompts with a zero denominator have nothing to say and are left out. Fewer than MIN_PROMPTS
    prompts have no interval.
    """
    usable = np.logical_and.reduce([denominator > 0 for denominator in columns[1::2]])
    drawn = [column[usable] for column in columns]
    num_prompts = int(usable.sum())
    if num_prompts < MIN_PROMPTS:
        return None, None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # degenerate data is met below, not by a warning
        result = stats.bootstrap(
            drawn, _ratio, paired=True, vectorized=True, method="percentile", n_resamples=NUM_RESAMPLES, batch=250,
            confidence_level=expanded(num_prompts),
            rng=np.random.default_rng(seed),
        )  # fmt: skip
        value = float(_ratio(*drawn))
    if np.ptp(result.bootstrap_distribution) <= 1e-12 * abs(value):
        return _finite(value), _finite(value)
    return _finite(result.confidence_interval.low), _finite(result.confidence_interval.high)


def expanded(num_prompts: int) -> float:
    """The share of the resamples that the interval holds. Expanded percentiles: the tails are moved out as far as
    Student's t and the variance's missing n / (n - 1) ask for, or few prompts would get intervals that are too narrow
    (Hesterberg, What Teachers Should Know About the Bootstrap, arXiv:1411.5279, section 5.3)."""
    t = stats.t.ppf((1 + CONFIDENCE) / 2, num_prompts - 1)
    return float(2 * stats.norm.cdf(t * np.sqrt(num_prompts / (num_prompts - 1))) - 1)


def _ratio(*columns: Column, axis: int = -1) -> Column:
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = [column.sum(axis=axis) for column in columns]
        own = sums[0] / sums[1]
        return np.asarray(own if len(sums) == 2 else own / (sums[2] / sums[3]))


def _finite(value: float | Column) -> float | None:
    return float(value) if np.isfinite(value) else None
