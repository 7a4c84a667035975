"""How often `specbench check` fails, by simulation.

Both runs measure the same prompts. Lengths are log-normal with sigma 1, speed-ups of single prompts with sigma 0.3
around 2. Every generation's seconds have noise of their own, log-normal with sigma 0.08, and one of 50 takes 1.5 to 3
times as long. The second run has another clock (sigma 0.1), which AR and the method share. A regression makes the
method's seconds longer in the second run.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.gate.speed import widening
from specbench.gate.typical import typical
from specbench.results.bootstrap import Metric, interval, ratio
from specbench.results.ratios import widened

Array = NDArray[np.float64]
NUM_CHECKS = 2000
SIZES = (16, 30, 100)
FALLS = (0.0, 0.03, 0.05, 0.1, 0.2)
MAX_REGRESSION = 0.03
NUM_METHODS = (1, 5)  # that one check compares


def measured(tokens: Array, seconds: Array, generator: np.random.Generator) -> list[Array]:
    """Tokens and seconds [num_prompts] as a run would measure them."""
    noise = np.exp(0.08 * generator.normal(size=len(tokens)))
    spikes = np.where(generator.random(len(tokens)) < 0.02, generator.uniform(1.5, 3, size=len(tokens)), 1.0)
    return [tokens, seconds * noise * spikes]


def simulated(generator: np.random.Generator, num_prompts: int, fall: float, by: float) -> list[Metric]:
    """The ratios of the speed-ups of two runs, of all prompts and of a typical one; the method of the second has lost
    the share `fall` of its speed. `by`: how much longer the intervals are than those of 95 %."""
    tokens = np.exp(4 + generator.normal(size=num_prompts))
    seconds_ar = 0.02 * tokens
    seconds = seconds_ar / np.exp(np.log(2) + 0.3 * generator.normal(size=num_prompts))
    clock = float(np.exp(0.1 * generator.normal()))
    candidate = [*measured(tokens, clock * seconds / (1 - fall), generator),
                 *measured(tokens, clock * seconds_ar, generator)]  # fmt: skip
    columns = [*candidate, *measured(tokens, seconds, generator), *measured(tokens, seconds_ar, generator)]
    low, high = interval(columns, seed=0)
    return [widened(Metric(value=ratio(columns), low=low, high=high), by), typical(np.array(columns), by)]


def share_failed(num_checks: int, num_prompts: int, fall: float, num_methods: int, max_regression: float) -> float:
    """The share of checks of so many methods in which at least one is said to have regressed; one of them has."""
    generator = np.random.default_rng(num_prompts)
    by, failed = widening(2 * num_methods), 0
    for _ in range(num_checks):
        ratios = [each for n in range(num_methods) for each in simulated(generator, num_prompts, fall * (n == 0), by)]
        failed += any((each.high or 1.0) < 1 - max_regression for each in ratios)
    return failed / num_checks


def lines(num_checks: int, sizes: Sequence[int] = SIZES) -> Iterator[str]:
    """Of each number of prompts and of methods, and of a fall that is allowed or not, the share of checks that fail, in
    %, by the true fall."""
    for max_regression in (MAX_REGRESSION, 0.0):
        for num_prompts in sizes:
            for num_methods in NUM_METHODS:
                falls = FALLS if num_methods == 1 else FALLS[:1]
                found = [share_failed(num_checks, num_prompts, fall, num_methods, max_regression) for fall in falls]
                cells = [f"{100 * share:.1f}" for share in found] + [""] * (len(FALLS) - len(found))
                yield f"| {num_prompts} | {num_methods} | {max_regression:.0%} | {' | '.join(cells)} |"
