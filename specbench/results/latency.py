"""Times of the answers of servers → their quantiles, for one request at a time and for loads."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from specbench.statistics.bootstrap import Estimate

QUANTILES = {"seconds": 0.5, "p90_seconds": 0.9, "p95_seconds": 0.95, "p99_seconds": 0.99}


def quantiles(times: Mapping[str, Sequence[float]]) -> dict[str, Estimate]:
    """Returns the quantiles of each kind of times in seconds, such as `ttft_p90_seconds`; null without any."""
    return {
        f"{name}_{kind}": Estimate(value=float(np.quantile(values, share)) if len(values) else None)
        for name, values in times.items() for kind, share in QUANTILES.items()
    }  # fmt: skip


def token_gaps(reads: Sequence[tuple[float, int]]) -> list[float]:
    """Returns the time between tokens (ITL) of each token after the first read of an answer: the tokens of a read share
    the seconds since the read before it. `reads`: [seconds since the request, tokens]."""
    return [(later - earlier) / num for (earlier, _), (later, num) in pairwise(reads) for _ in range(num)]
