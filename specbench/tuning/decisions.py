"""What `specbench tune` decides from measurements, in the order of arXiv:2502.20704, App. D."""

import math
from collections.abc import Mapping, Sequence

from specbench.decoding.divergences import MAX_JS
from specbench.results.bootstrap import Metric

LENGTHS = (5, 10, 15, 20)
TOLERATED = 0.2  # the share of the gap between target and drafter that quality may fall
NEARLY_ALL = 0.9  # of the draft tokens accepted: a longer draft is worth a try
FINE = 0.05  # the grid on which T_SD is looked for: estimates cost no run
LARGEST = 1.0  # of the thresholds tried, where the divergence itself has no bound


def fastest(speeds: Mapping[int, float]) -> int:
    """The draft length with the most tokens per second; the shorter one of equals."""
    return max(sorted(speeds), key=lambda length: speeds[length])


def thresholds_up_to(divergence: str, step: float, start: float = 0.0) -> list[float]:
    """start + step, start + 2 step, … below what accepts everything: ln 2 for the Jensen–Shannon divergences, 1 for the
    others, where the paper's grid ends too."""
    most = MAX_JS if divergence in ("js", "top_k_js") else LARGEST
    count = math.floor((most - start) / step + 1e-9)
    return [round(start + number * step, 6) for number in range(1, count + 1)]


def thresholds_below(start: float) -> list[float]:
    """The fine grid from below `start` down to its first step."""
    return [round(number * FINE, 6) for number in range(math.ceil(start / FINE - 1e-9) - 1, 0, -1)]


def nearest(shares: Mapping[float, float], wanted: float) -> float:
    """The threshold whose share of accepted draft tokens is nearest to the wanted one; the smaller one of equals."""
    return min(sorted(shares), key=lambda threshold: abs(shares[threshold] - wanted))


def candidates(shares: Mapping[float, float], wanted: float) -> list[float]:
    """The nearest threshold by estimate, and those beside it: what a real run has to choose from."""
    ordered = sorted(shares)
    place = ordered.index(nearest(shares, wanted))
    return ordered[max(0, place - 1) : place + 2]


def allowed_quality(target: float, drafter: float) -> float:
    """The lowest quality that has fallen by no more than a fifth of the gap."""
    return target - TOLERATED * (target - drafter)


def within(qualities: Sequence[tuple[float, float]], allowed: float) -> list[float]:
    """The thresholds up to the first that falls below what is allowed: [(threshold, quality)] in rising order."""
    kept = []
    for threshold, quality in qualities:
        if quality < allowed - 1e-9:
            break
        kept.append(threshold)
    return kept


def is_blind(difference: Metric, gap: float, num_prompts: int, most: float = 1.0) -> bool:
    """Whether the slice is too small to see the fall that is looked for: the interval of the quality's difference is
    wider than it, and holds it. An interval without width, as of a corpus score where all answers are AR's, says
    less than it seems to: so many prompts exclude no fall below 3 / n (at 95 %) of the `most` that two can differ by.
    """
    if difference.value is None or difference.low is None or difference.high is None:
        return True
    fall = TOLERATED * gap
    low = difference.low if difference.low < difference.high else difference.value - 3 * most / num_prompts
    return difference.high - low > fall and low <= -fall <= difference.high


def middle(low: float, high: float) -> float:
    """The threshold half-way."""
    return round((low + high) / 2, 6)
