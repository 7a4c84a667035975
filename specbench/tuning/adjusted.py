"""Quality-adjusted acceptance: α times the score of the same answers (arXiv:2510.02128, section 8.3 and figure 7)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specbench.fairness.spread import estimate
from specbench.results.bootstrap import Metric, Prompts
from specbench.results.corpus import corpus_of
from specbench.results.units import bounds_of
from specbench.running.record_check import ACCEPTED, JUDGED, step_sum
from specbench.running.records import Record
from specbench.scoring.contract import Scorer

Array = NDArray[np.float64]


def adjusted_acceptance(records: Sequence[Record], method: str, quality: str, scorer: Scorer, seed: int) -> Metric:
    """α · quality of a method in one subset, in the unit of the quality, with a 95 % interval over prompts, drawn with
    their acceptance and their score together. Null where nothing was judged, or a prompt has no score."""
    own = [record["methods"][method] for record in records]
    cluster = Prompts.of(records, seed).cluster
    judged = [step_sum(generation, JUDGED) for generation in own]
    rates = [step_sum(g, ACCEPTED) / n if n else 0.0 for g, n in zip(own, judged, strict=True)]
    least, most = bounds_of(quality) or (-np.inf, np.inf)
    bounds = (min(least, 0.0), most)  # an acceptance rate of 0 makes any score 0
    acceptance = by_prompt(cluster, rates, [float(n > 0) for n in judged])
    if any(quality in generation.get("statistics", {}) for generation in own):
        part = corpus_of(quality, scorer, cluster, own, own)
        if part is None or len(part.own) != len(acceptance):
            return Metric()
        both = np.hstack([acceptance, part.own])
        return estimate(
            [both], lambda sums: rate(sums[0]) * [part.score(row) for row in sums[0][:, 2:].tolist()], seed,
            *bounds,
        )  # fmt: skip
    scores = [generation.get("scores", {}).get(quality) for generation in own]
    if not scores or None in scores:
        return Metric()
    both = np.hstack([acceptance, by_prompt(cluster, scores, [1.0] * len(scores))])
    return estimate([both], lambda sums: rate(sums[0]) * sums[0][:, 2] / sums[0][:, 3], seed, *bounds)


def by_prompt(cluster: NDArray[np.int64], *columns: Sequence[float]) -> Array:
    """Sums over the records of each prompt: [num_prompts, num_columns]."""
    return np.stack([np.bincount(cluster, weights=np.asarray(column)) for column in columns], axis=1)


def rate(sums: Array) -> Array:
    """Mean acceptance rate of sums over prompts [num_resamples, 2 or more]: [num_resamples]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums[:, 0] / sums[:, 1])
