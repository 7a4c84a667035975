"""95 % intervals of what cannot leave its bounds: shares such as an accuracy, and differences of shares."""

import numpy as np
from scipy import special

from specbench.results.log_ratios import TAILS, Array, are_equal, percentiles, studentized

Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)


def bounded(columns: Array, bounds: Bounds, seed: int) -> tuple[float, float]:
    """The interval of a weighted mean of values within bounds; columns [2, num_prompts]: sums of values, of weights.

    Equal values, as of a method that was right every time: `of_equal`. Bounds from 0 on: bootstrap-t of the log odds,
    which are a log ratio of sums too; where every prompt is at one of the bounds (right or wrong), or too few differ,
    `wilson`. Differences, whose bounds lie on both sides of 0: expanded percentiles; to a side to which no prompt
    differs they reach as far as where all are equal.
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
    """Prompts that all say the same have no variance to go by. They exclude, at 97.5 % to each side, that a share of
    more than 1 − 0.025^(1/n) of all prompts says something else (3.7 % for n = 100); and that can lie at a bound."""
    unseen = 1 - TAILS[0] ** (1 / num_prompts)
    return value - unseen * (value - bounds[0]), value + unseen * (bounds[1] - value)


def wilson(parts: Array) -> tuple[float, float]:
    """Wilson's interval of a share, with Student's t, for as many independent answers as have the variance that the
    share has between prompts: repeats of a prompt and prompts of uneven weight count as fewer; n − 1 where it has no
    such variance. It stays within 0 and 1. (Effective sample size: Korn and Graubard, Survey Methodology 24, 1998; with
    Wilson's: Kott and Carr, Journal of Official Statistics 13, 1997.)
    parts [2, num_prompts]: how much of each prompt's weight is in the share, and not.
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
