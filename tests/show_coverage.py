"""How often 95 % intervals hold a truth that is known, by simulation: `python tests/show_coverage.py` prints the table;
`python tests/show_coverage.py 2000 5 10` that of 2,000 runs of 5 and of 10 prompts.

Every run draws its prompts anew from a population, and computes the interval of the plain percentiles, of BCa and ours
from the same resamples of them. Lengths are log-normal with sigma 1: the longest of 100 prompts holds a tenth of all
tokens.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import special

from specbench.results.bootstrap import SHARE, Bounds, interval
from specbench.results.resampling import TAILS, ratio_of, resamples

Array = NDArray[np.float64]
Ends = tuple[float, float]
Found = tuple[float, float, float]
NUM_RUNS = 5000
SIZES = (5, 10, 16, 30, 100, 250)
METHODS = ("percentile", "BCa", "specbench")


@dataclass(frozen=True)
class Population:
    """Columns of prompts [2 or 4, num_prompts], drawn by `draw`, and the ratio of their expected sums."""

    name: str
    draw: Callable[[np.random.Generator, int], Array]
    truth: float
    bounds: Bounds | None = None


def speedup(correlation: float, spread: float) -> Population:
    """Speed-ups that are log-normal around 2 with sigma `spread`, and correlate with the log of the length."""

    def draw(generator: np.random.Generator, num_prompts: int) -> Array:
        length, other, noise = generator.normal(size=(3, num_prompts))
        tokens = np.exp(4 + length)
        seconds = 0.02 * tokens * np.exp(0.1 * noise)
        log_speedup = np.log(2) + spread * (correlation * length + np.sqrt(1 - correlation**2) * other)
        return np.array([tokens, seconds / np.exp(log_speedup), tokens, seconds])

    # E[seconds of AR] / E[seconds], both of log-normals: exp(mean + variance / 2)
    variance = (1 - spread * correlation) ** 2 + spread**2 * (1 - correlation**2)
    word = "falls" if correlation < 0 else "rises"
    return Population(f"speed-up {word} with length, sigma {spread:g}", draw, 2 * float(np.exp((1 - variance) / 2)))


def _accepted(generator: np.random.Generator, num_prompts: int) -> Array:
    judged = np.exp(4 + generator.normal(size=num_prompts))
    return np.array([judged * generator.beta(4, 1, size=num_prompts), judged])


def _right(generator: np.random.Generator, num_prompts: int) -> Array:
    return np.array([(generator.random(num_prompts) < 0.9).astype(float), np.ones(num_prompts)])


POPULATIONS = (
    speedup(-0.5, 0.25),
    speedup(0.5, 0.4),
    Population("acceptance rate, pooled, 0.8", _accepted, 0.8, SHARE),
    Population("accuracy 0.9", _right, 0.9, SHARE),
)


def coverage(population: Population, num_prompts: int, num_runs: int, seed: int = 0) -> dict[str, Found]:
    """Of each method, the share of runs whose interval holds the truth, and the median and the 95th percentile of the
    intervals' widths."""
    generator = np.random.default_rng(seed)
    ends: dict[str, list[Ends]] = {method: [] for method in METHODS}
    for _ in range(num_runs):
        columns = population.draw(generator, num_prompts)
        (counts,) = resamples(num_prompts, seed)  # the same ones that `interval` takes
        drawn = ratio_of(counts @ columns.T)
        ends["percentile"].append(_quantiles(drawn, TAILS))
        ends["BCa"].append(_quantiles(drawn, accelerated(columns, drawn)))
        low, high = interval(list(columns), seed, population.bounds)
        ends["specbench"].append((np.nan if low is None else low, np.nan if high is None else high))
    found = {}
    for method, pairs in ends.items():
        low, high = np.array(pairs).T
        holds = (low <= population.truth + 1e-12) & (population.truth - 1e-12 <= high)
        median, wide = np.quantile(high - low, (0.5, 0.95))
        found[method] = float(holds.mean()), float(median), float(wide)
    return found


def accelerated(columns: Array, drawn: Array) -> Sequence[float]:
    """The tails of BCa, the acceleration from the jackknife (Efron and Tibshirani, equations 14.10 to 14.15)."""
    sums = columns.sum(axis=1)
    value, left_out = ratio_of(sums), ratio_of(sums - columns.T)
    apart = left_out.mean() - left_out
    below = ((drawn < value).mean() + (drawn <= value).mean()) / 2
    if not np.ptp(left_out) or not 0 < below < 1:
        return TAILS
    bias, acceleration = special.ndtri(below), (apart**3).sum() / (6 * (apart**2).sum() ** 1.5)
    moved = bias + special.ndtri(TAILS)
    return [float(tail) for tail in special.ndtr(bias + moved / (1 - acceleration * moved))]


def _quantiles(drawn: Array, tails: Sequence[float]) -> Ends:
    low, high = np.quantile(drawn, tails)
    return float(low), float(high)


def main() -> None:
    num_runs = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_RUNS
    sizes = [int(size) for size in sys.argv[2:]] or SIZES
    error = 100 * (0.95 * 0.05 / num_runs) ** 0.5
    table = Table(
        "population",
        "n",
        *METHODS,
        title=f"Coverage in % (width: median, 95th percentile), {num_runs} runs: ± {error:.1f} at 95 %",
    )
    for population in POPULATIONS:
        for num_prompts in sizes:
            found = coverage(population, num_prompts, num_runs)
            cells = [f"{100 * covered:.1f} ({median:.3f}, {wide:.3f})" for covered, median, wide in found.values()]
            table.add_row(population.name, str(num_prompts), *cells)
            print(population.name, num_prompts, *cells, sep="  ", file=sys.stderr, flush=True)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
