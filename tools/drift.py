"""Simulates how often a run is said to have drifted, with and without a drift of the baseline's speed.

Simulated answers: log-normal lengths (sigma 1); prompts of 50 to 2,000 tokens, of one kind, or of three subsets one
after the other, each with longer prompts than the one before; seconds = (a pass + the context's share of it) · tokens +
what an answer costs once, all times exp(noise), Student's t with three degrees of freedom and the standard deviation
said.
The column `held` is the share of runs without drift whose interval holds 1, in %; the others are the shares of runs
that are said to have drifted, by the factor of the drift.
"""

import argparse
from itertools import product

import numpy as np

from specbench.results.warnings import drift_of, has_drifted
from specbench.statistics.bootstrap import Estimate

NOISES, SIZES, DRIFTS = (0.05, 0.1, 0.2), (16, 24, 30, 60, 100, 250), (1.0, 1.05, 1.1, 1.2, 1.3)


def simulated(drift: float, size: int, noise: float, rng: np.random.Generator, num_subsets: int = 1) -> Estimate:
    """One run whose baseline gets slower from answer to answer, so that it is `drift` times slower in the last third
    than in the first: the true ratio is 1 ÷ drift."""
    tokens = np.ceil(np.exp(rng.normal(3.0, 1.0, size))).clip(1, 400)
    subset = np.arange(size) * num_subsets // size
    context = rng.lognormal(np.log(100) + subset, 0.5).clip(50, 2000)
    seconds = tokens * (0.02 + 4e-6 * (context + tokens / 2)) + 0.01
    progress = 1.5 * np.linspace(0, 1, size)  # the middles of the first and the last third are two thirds apart
    errors = rng.standard_t(3, size) * noise / np.sqrt(3)
    seconds = seconds * np.exp(errors + np.log(drift) * progress)
    return drift_of(seconds, tokens, context, np.arange(size))


def shares(drift: float, size: int, noise: float, num_runs: int, num_subsets: int = 1) -> tuple[float, float]:
    """Returns, of `num_runs` simulated runs, the share said to have drifted, and the share whose interval holds 1 ÷
    drift."""
    rng = np.random.default_rng([num_subsets, size, round(1000 * noise), round(1000 * drift)])
    found = [simulated(drift, size, noise, rng, num_subsets) for _ in range(num_runs)]
    held = [m.low <= 1 / drift <= m.high for m in found if m.low is not None and m.high is not None]
    return sum(map(has_drifted, found)) / num_runs, sum(held) / num_runs


def main() -> None:
    """Prints a table for contexts of one kind and one for three subsets."""
    parser = argparse.ArgumentParser(prog="python -m tools.drift", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="simulated runs of a cell")
    num_runs = parser.parse_args().runs
    for num_subsets, name in ((1, "contexts of one kind"), (3, "three subsets, contexts ever longer")):
        print(f"    {name}\n    noise    n   held" + "".join(f"{f'× {drift:g}':>8}" for drift in DRIFTS))
        for noise, size in product(NOISES, SIZES):
            found = [shares(drift, size, noise, num_runs, num_subsets) for drift in DRIFTS]
            cells = "".join(f"{100 * told:8.1f}" for told, _ in found)
            print(f"    {noise:5g} {size:4d} {100 * found[0][1]:6.1f}{cells}")


if __name__ == "__main__":
    main()
