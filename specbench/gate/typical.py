"""How the speed-up of a typical prompt has changed.

A ratio of sums leans on the few longest prompts, and on a single generation that something else on the machine held up.
The ratios of single prompts do not: their Hodges-Lehmann estimate, the median of the means of all pairs, with the
interval of Wilcoxon's signed-rank test, on the scale of the logs (Hollander, Wolfe and Chicken, Nonparametric
Statistical Methods, section 3.3). Where nothing has changed the two runs may be swapped, so that the logs are
symmetric around 0, which is all that the interval asks for. What only long prompts lose is for the ratio of sums.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from specbench.results.bootstrap import Metric
from specbench.results.log_ratios import SIGNS
from specbench.results.resampling import TAILS

MAX_PROMPTS = 2000  # there are two million pairs of so many, and a ratio of sums is sharp enough
Array = NDArray[np.float64]


def typical(columns: Array, by: float = 1.0) -> Metric:
    """The typical ratio of two speed-ups, its interval `by` times as far out as that of 95 %; without an interval where
    prompts are too few for one so wide, without a value where they are too many. columns: as of `medians`; or four,
    tokens and seconds in the candidate, then in the baseline, for the ratio of two speeds."""
    logs = _logs(columns)
    if not 0 < logs.shape[1] <= MAX_PROMPTS:
        return Metric()
    low, middle, high = hodges_lehmann(SIGNS[: len(logs)] @ logs, by)
    ends = {} if low is None or high is None else {"low": np.exp(low), "high": np.exp(high)}
    return Metric(value=np.exp(middle), **ends)


def medians(columns: Array) -> tuple[Metric, Metric]:
    """The median speed-up of a prompt in the baseline and in the candidate.

    columns [8, num_prompts]: tokens and seconds of the method and of AR in the candidate, then in the baseline.
    """
    logs = _logs(columns)
    now, before = (float(np.exp(np.median(SIGNS[:4] @ half))) for half in (logs[:4], logs[4:]))
    return Metric(value=before), Metric(value=now)


def hodges_lehmann(values: Array, by: float = 1.0) -> tuple[float | None, float, float | None]:
    """The interval's low end, the estimate and the high end; values: [num_values]. `by` multiplies the 1.96 standard
    deviations of the signed-rank statistic that are 95 %. No ends where the statistic of so few values never lies that
    far out: the outermost values are then an interval of less than what is asked for."""
    num_values = len(values)
    first, second = np.triu_indices(num_values)
    means = np.sort((values[first] + values[second]) / 2)
    deviation = np.sqrt(num_values * (num_values + 1) * (2 * num_values + 1) / 24)  # of the signed-rank statistic
    place = math.floor(len(means) / 2 + by * special.ndtri(TAILS[0]) * deviation)
    middle = float(np.median(means))
    return (float(means[place]), middle, float(means[-1 - place])) if place >= 0 else (None, middle, None)


def _logs(columns: Array) -> Array:
    """Of the prompts that have a speed on both sides."""
    return np.asarray(np.log(columns[:, (columns > 0).all(axis=0)]))
