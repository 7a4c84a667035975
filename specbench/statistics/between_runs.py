"""Independent runs of one measurement: whether two agree, and how far runs vary.

Runs on the same prompts share which prompts were drawn. So their differences are taken prompt by prompt first, and
intervals over prompts of single runs, which are wider, are not used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.statistics import special
from specbench.statistics.bootstrap import TAILS, Estimate

Array = NDArray[np.float64]
FEWEST_RUNS = 3  # two runs say nothing of the variance between runs


def normalized_error(ratio: Estimate) -> float | None:
    """Returns E_n of two values: their difference ÷ the half-width of its 95 % interval, here on the log scale and of a
    paired ratio, whose interval stands for √(U₁² + U₂²). Up to 1 the values agree (ISO 13528:2022, 9.7). It is 0 for
    equal values; None without an interval."""
    if ratio.value == 1:
        return 0.0
    if not ratio.value or not ratio.low or not ratio.high or ratio.high <= ratio.low:
        return None
    return abs(math.log(ratio.value)) / ((math.log(ratio.high) - math.log(ratio.low)) / 2)


@dataclass(frozen=True)
class RandomEffects:
    """The mean of several runs on the log scale. `variance`: between runs (σ²_between). `heterogeneity`: I², the share
    of the spread of runs that their own noise does not explain. `mean`: with its 95 % interval; `prediction`: the 95 %
    interval of one more run on the same prompts."""

    num_runs: int
    variance: float
    heterogeneity: float
    mean: Estimate
    prediction: tuple[float, float]


def random_effects(logs: Array, variances: Array) -> RandomEffects:
    """Returns the random-effects mean of runs as ratios, from their logs and the variance of each: [num_runs].

    σ²_between is DerSimonian and Laird's (Controlled Clinical Trials 7, 1986). The standard error of the mean is
    Hartung and Knapp's with t of num_runs − 1 (Statistics in Medicine 20, 2001), not below that of the weights. The
    prediction interval has t of num_runs − 2 (Higgins, Thompson and Spiegelhalter, JRSS A 172, 2009), here of what one
    more run measures: with the noise of a run, which the interval of its true effect lacks. Raises ValueError for fewer
    than three runs."""
    num = len(logs)
    if num < FEWEST_RUNS:
        raise ValueError(f"{num} runs: the variance between runs needs {FEWEST_RUNS}")
    own = np.maximum(variances, np.finfo(float).tiny ** 0.5)  # equal runs have no variance of their own
    # 1. Between runs: what the weighted squares have beyond their expectation.
    weights = 1 / own
    spread = float((weights * (logs - np.average(logs, weights=weights)) ** 2).sum())
    expected = num - 1
    scale = float(weights.sum() - (weights**2).sum() / weights.sum())
    between = max(0.0, (spread - expected) / scale)
    # 2. The mean with weights of both variances.
    weights = 1 / (own + between)
    mean = float(np.average(logs, weights=weights))
    observed = float((weights * (logs - mean) ** 2).sum()) / (num - 1)
    error = math.sqrt(max(1.0, observed) / float(weights.sum()))
    near = float(special.stdtrit(num - 1, TAILS[1])) * error
    far = float(special.stdtrit(num - 2, TAILS[1])) * math.sqrt(error**2 + between + float(own.mean()))
    return RandomEffects(
        num, between, max(0.0, 1 - expected / spread) if spread > 0 else 0.0,
        Estimate(value=math.exp(mean), low=math.exp(mean - near), high=math.exp(mean + near)),
        (math.exp(mean - far), math.exp(mean + far)),
    )  # fmt: skip


def variances_on_same_units(columns: Sequence[Array]) -> Array:
    """Returns the variance of each run's log ratio, without what runs on the same units have in common: [num_runs].

    columns: of each run numerators and denominators by unit, [2 or 4, num_units], in the same order, none of which
    is a whole sum; of four, the first ratio ÷ the second. It is the jackknife of the log ratio: how much it
    changes when a unit is left out. Runs lose their mean change, and the last factor makes up for the part of its own
    that each loses with it.
    """
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    changes = np.array([
        (signs[: len(each), None] * -np.log1p(-each / each.sum(axis=1, keepdims=True))).sum(axis=0) for each in columns
    ])  # fmt: skip
    num_runs, num_units = changes.shape
    own = changes - changes.mean(axis=0)
    own -= own.mean(axis=1, keepdims=True)
    found: Array = (own**2).sum(axis=1) * (num_units - 1) / num_units * num_runs / (num_runs - 1)
    return found
