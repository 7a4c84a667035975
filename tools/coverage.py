"""Simulates how often 95 % intervals hold a true value that is known, and writes docs/measured/coverage.md.

Every run draws its prompts from a population and computes three intervals from the same resamples: plain percentiles,
BCa and specbench's. Lengths are log-normal with sigma 1: the longest of 100 prompts holds a tenth of all tokens.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import special

from specbench.core.table import markdown_table
from specbench.core.values import text_digest
from specbench.statistics import bootstrap
from specbench.statistics.bootstrap import TAILS, ratio_of, resamples
from tools.populations import POPULATIONS, Array, Population

Found = tuple[float, float, float]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "measured" / "coverage.md"
NUM_RUNS = 5000
SIZES = (5, 10, 16, 30, 100, 250)
SAMPLE = (100, 30)  # runs and prompts of the part that a test computes again
LEAST, ENOUGH = 0.93, 100  # what is to hold, and from how many prompts on
METHODS = ("percentile", "BCa", "specbench")
CONSTANTS = ("MIN_STUDENTIZED", "MIN_DIFFERENT", "MIN_PRESENT", "MAX_PIVOT", "MAX_LEVERAGE")


def coverage(population: Population, num_prompts: int, num_runs: int, seed: int = 0) -> dict[str, Found]:
    """Returns, for each method, the share of runs whose interval holds the truth, and the median and the 95th
    percentile of the intervals' widths."""
    generator = np.random.default_rng(seed)
    ends: dict[str, list[Sequence[float]]] = {}
    for _ in range(num_runs):
        columns = population.draw(generator, num_prompts)
        low, high = population.of(columns, seed)
        ours = (np.nan if low is None else low, np.nan if high is None else high)
        for method, pair in [*_others(population, columns, seed), ("specbench", ours)]:
            ends.setdefault(method, []).append(pair)
    return {method: _held(np.array(pairs), population.truth) for method, pairs in ends.items()}


def _others(population: Population, columns: Array, seed: int) -> Iterator[tuple[str, Sequence[float]]]:
    """Plain percentiles and BCa of the resamples that `interval` takes, where it takes any."""
    if population.resampled:
        drawn = np.concatenate([ratio_of(counts @ columns.T) for counts in resamples(columns.shape[1], seed)])
        yield "percentile", np.quantile(drawn, TAILS)
        yield "BCa", np.quantile(drawn, accelerated(columns, drawn))


def _held(ends: Array, truth: float) -> Found:
    low, high = ends.T
    holds = (low <= truth + 1e-12) & (truth - 1e-12 <= high)
    median, wide = np.quantile(high - low, (0.5, 0.95))
    return float(holds.mean()), float(median), float(wide)


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


def method_digest() -> str:
    """12 hex digits of SHA-256 over what `intervals` in a row says of the method, and over its constants."""
    constants = {name: round(float(getattr(bootstrap, name)), 9) for name in CONSTANTS}
    told = f"{bootstrap.INTERVALS.model_dump_json()} {constants} {bootstrap.MIN_PROMPTS}"
    return text_digest(told)


def sample_of(population: Population) -> list[str]:
    """The line of the page that a test computes again, and finds there to the last digit, by cells."""
    covered, median, wide = coverage(population, SAMPLE[1], SAMPLE[0])["specbench"]
    return [population.name, f"{round(covered * SAMPLE[0])}", f"{median:.3g}", f"{wide:.3g}"]


def line_of(population: Population, num_prompts: int, num_runs: int) -> list[str]:
    runs = min(num_runs, population.most)
    found = coverage(population, num_prompts, runs)
    shares = [f"{100 * found[method][0]:.1f}" if method in found else "–" for method in METHODS]
    widths = [f"{width:.3g}" for width in found["specbench"][1:]]
    return [population.name, f"{num_prompts}", f"{runs}", *shares, *widths]


HEAD = """# How often the intervals hold the truth

`python -m tools.coverage --write` writes this page, and `tests/tools/test_coverage.py` checks that it belongs to the
present method. Each simulated run draws n prompts from a population whose true value is known
(`tools/populations.py`, seed 0) and computes the 95 % interval that a row, a rank, `compare`, `check` or `fairness`
would show. The table gives the share of runs whose interval holds the true value, for specbench's intervals and,
for comparison, for plain percentiles and BCa of the same resamples. The widths are those of specbench's intervals,
in the unit of the number.

Lengths are log-normal with sigma 1 unless the line says otherwise, so that the longest of 100 prompts holds a tenth
of all tokens. A share of 95 % has a standard error of 0.3 points in 5,000 runs and of 1.3 in 300. From 100 prompts
on every share of 5,000 runs is at least 93 %; that of the variance between languages, of 300 runs, is so within two
standard errors. Rows with fewer than 30 prompts are flagged.

"""


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return markdown_table(head, lines, [column > 0 for column in range(len(head))])


def page(lines: Sequence[Sequence[str]], samples: Sequence[Sequence[str]]) -> str:
    columns = ["population", "n", "runs", *(f"{method} %" for method in METHODS), "median width", "95th percentile"]
    told = "; ".join(f"{kind}: {text}" for kind, text in bootstrap.INTERVALS.method.items())
    return HEAD + "\n".join(
        [
            f"Method {method_digest()}, {bootstrap.NUM_RESAMPLES} resamples. {told}.",
            "",
            table(columns, lines),
            "",
            f"## What a test computes again: {SAMPLE[0]} runs of {SAMPLE[1]} prompts",
            "",
            table(["population", "held", "median width", "95th percentile"], samples),
            "",
        ]
    )


def main() -> None:
    """Prints a line for each population and number of prompts, and writes the page if asked to."""
    parser = argparse.ArgumentParser(prog="python -m tools.coverage", description=__doc__)
    parser.add_argument("--runs", type=int, default=NUM_RUNS, help="simulated runs of a line")
    parser.add_argument("--prompts", type=int, nargs="+", default=SIZES, help="numbers of prompts")
    parser.add_argument("--write", action="store_true", help="write the page")
    asked = parser.parse_args()
    lines: list[list[str]] = []
    for population in POPULATIONS:
        for num_prompts in asked.prompts:
            lines.append(line_of(population, num_prompts, asked.runs))
            print(*lines[-1], sep=" | ", flush=True)
    if asked.write:
        PAGE.write_text(page(lines, [sample_of(population) for population in POPULATIONS]), encoding="utf-8")


if __name__ == "__main__":
    main()
