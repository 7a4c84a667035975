"""Populations of prompts whose truth is known, for `tools/coverage.py`: what a run measures of prompts drawn from
them, and the interval that specbench gives it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.fairness.groups import estimate, ratios, variance
from specbench.gate.speed import typical_ratio
from specbench.results.paired import unpaired_ratio
from specbench.results.scores import CorpusStatistics, corpus_metrics
from specbench.statistics.bootstrap import SHARE, SIGNS, Bounds, Resampler, interval

Array = NDArray[np.float64]
Ends = tuple[float | None, float | None]
DIFFERENCE: Bounds = (-1.0, 1.0)
NUM_GROUPS = 5


@dataclass(frozen=True)
class Population:
    """`draw`: what a run measures [num_columns, num_prompts]; `truth`: what the interval, `of` that and a seed, is to
    hold. `resampled`: whether it is a ratio of sums, which plain percentiles and BCa have an interval for too. `most`:
    the runs that are simulated at most, where one takes long."""

    name: str
    draw: Callable[[np.random.Generator, int], Array]
    truth: float
    of: Callable[[Array, int], Ends]
    resampled: bool = True
    most: int = 5000


def of_sums(bounds: Bounds | None = None) -> Callable[[Array, int], Ends]:
    """The interval of a ratio of sums."""
    return lambda columns, seed: interval(list(columns), seed, bounds)


def log_normal(name: str, means: Sequence[float], loadings: Sequence[Sequence[float]]) -> Population:
    """Columns whose logs are normal: their means, and what each takes of independent standard normal numbers."""
    centre, weights = np.array(means)[:, None], np.array(loadings)

    def draw(generator: np.random.Generator, num_prompts: int) -> Array:
        return np.asarray(np.exp(centre + weights @ generator.normal(size=(weights.shape[1], num_prompts))))

    expected = centre[:, 0] + np.square(weights).sum(axis=1) / 2  # of their logs' means
    return Population(name, draw, float(np.exp(SIGNS[: len(expected)] @ expected)), of_sums())


def speedup(correlation: float, spread: float) -> Population:
    """Speed-ups that are log-normal around 2 with sigma `spread`, and correlate with the log of the length."""
    tokens, baseline = [1.0, 0.0, 0.0], [1.0, 0.0, 0.1]
    own = [1 - spread * correlation, -spread * (1 - correlation**2) ** 0.5, 0.1]
    start, word = 4 + np.log(0.02), "falls" if correlation < 0 else "rises"
    name = f"speed-up that {word} with length, sigma {spread:g}"
    return log_normal(name, [4, start - np.log(2), 4, start], [tokens, own, tokens, baseline])


def change_of_speedup(name: str, other_outputs: float) -> Population:
    """Two runs of the same prompts: the speed-up of the second ÷ that of the first. Each generation's seconds have
    noise of their own; `other_outputs`: sigma of the length of an answer in the second run ÷ in the first."""
    length = [1.0, 0, 0, 0, 0, 0, 0]
    fall = 0.1
    second = [1.0, 0, other_outputs, 0, 0, 0, 0]
    before = [1.1, -0.25, 0, 0.1, 0, 0, 0], [1.0, 0, 0, 0, 0.1, 0, 0]
    now = [1.1, -0.25, other_outputs, 0, 0, 0.1, 0], [1.0, 0, 0, 0, 0, 0, 0.1]
    return log_normal(
        name,
        [4, -0.7 + fall, 4, 0, 4, -0.7, 4, 0],
        [second, now[0], length, now[1], length, before[0], length, before[1]],
    )


def _tied(generator: np.random.Generator, num_prompts: int) -> Array:
    """Two answers of three end at the limit of tokens; half of the prompts have the very same speed-up."""
    tokens = np.exp(4 + 2 * generator.normal(size=num_prompts)).clip(1, 32).round()
    speeds = generator.choice([1.0, 2.0, 3.0], p=[0.2, 0.5, 0.3], size=num_prompts)
    return np.array([tokens, 0.02 * tokens / speeds, tokens, 0.02 * tokens])


def _lengths(generator: np.random.Generator, num_prompts: int) -> Array:
    """Emitted tokens and target passes of two methods, whole numbers: up to five draft tokens are accepted a pass."""
    rates = generator.beta(4, 1, size=num_prompts), generator.beta(2, 2, size=num_prompts)
    steps = [np.ceil(np.exp(3 + generator.normal(size=num_prompts))) for _ in rates]
    emitted = [n + generator.binomial(5 * n.astype(int), rate) for n, rate in zip(steps, rates, strict=True)]
    return np.array([emitted[0], steps[0], emitted[1], steps[1]])


def _pooled(generator: np.random.Generator, num_prompts: int) -> Array:
    verified = np.exp(4 + generator.normal(size=num_prompts))
    return np.array([verified * generator.beta(4, 1, size=num_prompts), verified])


def _rates(generator: np.random.Generator, num_prompts: int) -> Array:
    """Returns the accepted of an answer's verified tokens; few answers have none or all."""
    verified = np.ceil(np.exp(3 + generator.normal(size=num_prompts))).astype(int)
    return np.array(
        [generator.binomial(verified, generator.beta(4, 1, size=num_prompts)) / verified, np.ones(num_prompts)]
    )


def _right(generator: np.random.Generator, num_prompts: int) -> Array:
    return np.array([(generator.random(num_prompts) < 0.9).astype(float), np.ones(num_prompts)])


def _right_of_two(generator: np.random.Generator, num_prompts: int) -> Array:
    """Returns scores in which one of ten prompts is lost and one of twenty won."""
    return np.array([generator.choice([-1.0, 0.0, 1.0], p=[0.1, 0.85, 0.05], size=num_prompts), np.ones(num_prompts)])


def _rates_of_two(generator: np.random.Generator, num_prompts: int) -> Array:
    return _rates(generator, num_prompts) - np.array([0.5, 0])[:, None] * generator.beta(2, 2, size=num_prompts)


def _unrelated(columns: Array, seed: int) -> Ends:
    prompts = Resampler(np.arange(columns.shape[1]), seed)
    now, before = (prompts.ratio(*half) for half in (columns[:4], columns[4:]))
    joined = unpaired_ratio(before, now)
    return joined.low, joined.high


def _two_machines(generator: np.random.Generator, num_prompts: int) -> Array:
    return np.concatenate([FALLING.draw(generator, num_prompts), FALLING.draw(generator, num_prompts)])


def _held_up(generator: np.random.Generator, num_prompts: int) -> Array:
    """Two runs without a difference; one generation of 50 took up to three times as long."""
    seconds = np.exp(3 + generator.normal(size=num_prompts) + 0.1 * generator.normal(size=(4, num_prompts)))
    seconds *= np.where(generator.random(seconds.shape) < 0.02, generator.uniform(1.5, 3, size=seconds.shape), 1.0)
    return np.insert(seconds, range(4), 1.0, axis=0)


def _typical(columns: Array, seed: int) -> Ends:
    found = typical_ratio(columns)
    return found.low, found.high


def _matches(generator: np.random.Generator, num_prompts: int) -> Array:
    """As BLEU counts them: matching n-grams of four orders, and how many there are; lengths have sigma 0.6."""
    total = np.exp(3 + 0.6 * generator.normal(size=num_prompts))
    good = generator.beta(4, 2, size=num_prompts)
    return np.array([*(total * good**n for n in range(1, 5)), total])


def _geometric(sums: Sequence[float]) -> float:
    return math.exp(sum(math.log(matching / sums[4]) for matching in sums[:4]) / 4)


def _corpus(columns: Array, seed: int) -> Ends:
    found = corpus_metrics(
        [CorpusStatistics(np.stack([columns.T] * 2), _geometric)], Resampler.of_units(columns.shape[1], seed)
    )[0]
    return found.low, found.high


def _languages(generator: np.random.Generator, num_prompts: int) -> Array:
    """Returns, for each language, Σ of the cross-entropies and the number of tokens of its texts."""
    tokens = np.exp(4 + 0.5 * generator.normal(size=(NUM_GROUPS, num_prompts)))
    means = 1 + 0.3 * np.arange(NUM_GROUPS)
    return np.concatenate([tokens * means[:, None] * generator.gamma(8, 1 / 8, size=tokens.shape), tokens])


def _unequal(columns: Array, seed: int) -> Ends:
    groups = [columns[[n, n + NUM_GROUPS]].T for n in range(NUM_GROUPS)]
    found = estimate(groups, lambda sums: variance(ratios(sums, 0, 1)), seed, 0.0)
    return found.low, found.high


MOMENTS = [4 / 6, 4 * 5 / (6 * 7), 4 * 5 * 6 / (6 * 7 * 8), 4 * 5 * 6 * 7 / (6 * 7 * 8 * 9)]  # of beta(4, 2)
FALLING = speedup(-0.5, 0.25)
POPULATIONS = (
    FALLING,
    speedup(0.5, 0.4),
    Population("speed-up, half of the prompts tied", _tied, 1 / (0.2 + 0.5 / 2 + 0.3 / 3), of_sums()),
    log_normal("tokens/s that fall with length", [4, 0], [[1, 0], [1.1, 0.1]]),
    Population("τ ÷ τ, whole numbers", _lengths, (1 + 5 * 0.8) / (1 + 5 * 0.5), of_sums()),
    change_of_speedup("change of a speed-up, same outputs (eight sums)", 0.0),
    change_of_speedup("change of a speed-up, other outputs (eight sums)", 0.3),
    Population("change of a speed-up, runs of other prompts", _two_machines, 1.0, _unrelated, resampled=False),
    Population("change of a typical prompt's speed-up", _held_up, 1.0, _typical, resampled=False),
    log_normal("mean of long-tailed values", [0, 0], [[1], [0]]),
    Population("acceptance rate, pooled, 0.8", _pooled, 0.8, of_sums(SHARE)),
    Population("acceptance rate, mean of answers, 0.8", _rates, 0.8, of_sums(SHARE)),
    Population("accuracy 0.9", _right, 0.9, of_sums(SHARE)),
    Population("difference of accuracies, −0.05", _right_of_two, -0.05, of_sums(DIFFERENCE)),
    Population("difference of acceptance rates, 0.55", _rates_of_two, 0.55, of_sums(DIFFERENCE)),
    Population("corpus score", _matches, float(np.prod(MOMENTS)) ** 0.25, _corpus, resampled=False),
    Population(
        f"variance between {NUM_GROUPS} languages, n texts each", _languages, 0.09 * 2, _unequal, resampled=False,
        most=300,
    ),
)  # fmt: skip
