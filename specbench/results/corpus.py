"""Scores of a whole corpus (BLEU, chrF++), with intervals by resampling prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specbench.results.bootstrap import CONFIDENCE, MIN_PROMPTS, NUM_RESAMPLES, Metric
from specbench.running.records import Generation
from specbench.scoring.contract import Scorer

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Corpus:
    """The answers of one subset. `own`, `baseline`: sums of statistics [num_prompts, num_statistics] of the method and
    of AR; `score`: the corpus score of such sums over prompts."""

    own: Array
    baseline: Array
    score: Callable[[Sequence[float]], float]


def corpus_of(
    name: str,
    scorer: Scorer,
    numbers: NDArray[np.int64],
    own: Sequence[Generation],
    baseline: Sequence[Generation],
) -> Corpus | None:
    """The statistics of the metric `name` by prompt, of the answers that both have some for; None where there are none.
    `numbers`: the prompt of each answer."""
    sides = [[g.get("statistics", {}).get(name) for g in side] for side in (own, baseline)]
    kept = [place for place, pair in enumerate(zip(*sides, strict=True)) if None not in pair]
    if not kept:
        return None
    summed = [_summed(numbers[kept], np.array([side[place] for place in kept], dtype=np.float64)) for side in sides]
    return Corpus(summed[0], summed[1], lambda sums: scorer.corpus(name, sums))


def _summed(numbers: NDArray[np.int64], statistics: Array) -> Array:
    """The sums over the answers to each prompt: [num_prompts, num_statistics]."""
    prompts, places = np.unique(numbers, return_inverse=True)
    sums = np.zeros((len(prompts), statistics.shape[1]))
    np.add.at(sums, places, statistics)
    return sums


def corpus_metrics(parts: Sequence[Corpus], seed: int) -> tuple[Metric, Metric, Metric]:
    """The score of the method, of AR, and their difference; of several subsets the mean of their scores.

    Intervals: the prompts of each subset are drawn anew, method and AR together, and the scores computed from the new
    sums. There is none where a subset has fewer than MIN_PROMPTS prompts.
    """
    if not parts:
        return Metric(), Metric(), Metric()
    own = float(np.mean([part.score(part.own.sum(axis=0).tolist()) for part in parts]))
    baseline = float(np.mean([part.score(part.baseline.sum(axis=0).tolist()) for part in parts]))
    if min(len(part.own) for part in parts) < MIN_PROMPTS:
        return Metric(value=own), Metric(value=baseline), Metric(value=own - baseline)
    generator = np.random.default_rng(seed)
    drawn = [_resampled(part, generator) for part in parts]
    sizes = [len(part.own) for part in parts]
    return (
        _with_interval(own, np.array([side[0] for side in drawn]), sizes),
        _with_interval(baseline, np.array([side[1] for side in drawn]), sizes),
        _with_interval(own - baseline, np.array([side[0] - side[1] for side in drawn]), sizes),
    )


def _resampled(part: Corpus, generator: np.random.Generator) -> tuple[Array, Array]:
    """The scores of the method and of AR in every resample: [NUM_RESAMPLES] each."""
    num_prompts = len(part.own)
    counts = generator.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), size=NUM_RESAMPLES)
    own, baseline = (
        np.array([part.score(sums) for sums in (counts @ statistics).tolist()])
        for statistics in (part.own, part.baseline)
    )
    return own, baseline


def _with_interval(value: float, drawn: Array, sizes: Sequence[int]) -> Metric:
    """`drawn`: the scores of each subset in every resample [num_subsets, NUM_RESAMPLES]; `sizes`: its prompts."""
    confidence = stratified(drawn.var(axis=1), np.array(sizes))
    resampled = drawn.mean(axis=0)
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    if high - low <= 1e-9:
        return Metric(value=value, low=value, high=value)
    return Metric(value=value, low=float(low), high=float(high))


def stratified(variances: Array, sizes: NDArray[np.int64]) -> float:
    """The share of the resamples that the interval of a mean over subsets holds: `bootstrap.expanded`, with the missing
    n / (n - 1) of each subset's own variance, and Student's t of as many degrees of freedom as their sum has
    (Welch, Biometrika 34, 1947; Satterthwaite, Biometrics Bulletin 2, 1946). Both are [num_subsets]."""
    total = float(variances.sum())
    if total == 0:
        return CONFIDENCE
    unbiased = variances * sizes / (sizes - 1)
    freedom = unbiased.sum() ** 2 / (unbiased**2 / (sizes - 1)).sum()
    t = stats.t.ppf((1 + CONFIDENCE) / 2, freedom)
    return float(2 * stats.norm.cdf(t * np.sqrt(unbiased.sum() / total)) - 1)
