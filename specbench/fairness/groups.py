"""Sums per prompt → the numbers of one group, with the theorems checked."""

from collections.abc import Sequence

import numpy as np

from specbench.fairness import columns as c
from specbench.fairness import positions as p
from specbench.fairness.columns import Columns
from specbench.fairness.numbers import Forced, GroupNumbers, Measured
from specbench.fairness.spread import Array, estimate, ratios
from specbench.fairness.theorems import chain, check_chain, check_fitness
from specbench.representation import Representation
from specbench.results.bootstrap import SHARE, Bounds, Metric, Prompts
from specbench.results.units import PERCENT
from specbench.scoring.contract import Scorer
from specbench.scoring.language import known


def ratio(
    group: Columns, over: int, under: int, seed: int, factor: float = 1.0, bounds: Bounds = (0.0, np.inf)
) -> Metric:
    """A ratio of sums of one group, with its interval."""
    return estimate([group.sums], lambda sums: factor * ratios(sums, over, under)[..., 0], seed, *bounds)


def as_in_a_row(group: Columns, *columns: int, seed: int, bounds: Bounds | None = None) -> Metric:
    """A ratio of two or four columns' sums over the prompts of one group, with the interval of the leaderboard."""
    return Prompts(np.arange(len(group.sums)), seed).ratio(*(group.sums[:, n] for n in columns), bounds=bounds)


def speedups(sums: Sequence[Array]) -> Array:
    """Measured tokens per second over AR's: m arrays → [..., m]."""
    return ratios(sums, c.TOKENS, c.SECONDS) / ratios(sums, c.AR_TOKENS, c.AR_SECONDS)


def measured(group: Columns, scorer: Scorer | None, seed: int) -> Measured:
    """The measured numbers of a group; `scorer`: of its answers."""
    bleu, adjusted = None, None
    if group.bleu is not None and scorer is not None:
        bleu = estimate([group.bleu], lambda sums: corpus_bleu(sums[0], scorer), seed, *PERCENT)
        both = np.hstack([group.sums[:, [c.RATES, c.RATED]], group.bleu])
        adjusted = estimate(
            [both], lambda sums: ratios(sums, 0, 1)[..., 0] * corpus_bleu(sums[0][:, 2:], scorer), seed, *PERCENT
        )
    return Measured(
        acceptance_rate=as_in_a_row(group, c.RATES, c.RATED, seed=seed, bounds=SHARE),
        mean_acceptance_length=as_in_a_row(group, c.EMITTED_TOKENS, c.STEPS, seed=seed),
        speedup=as_in_a_row(group, c.TOKENS, c.SECONDS, c.AR_TOKENS, c.AR_SECONDS, seed=seed),
        bleu=bleu,
        adjusted_acceptance=adjusted,
    )


def corpus_bleu(sums: Array, scorer: Scorer) -> Array:
    """The corpus score of summed statistics: [num_resamples, num_statistics] → [num_resamples]."""
    return np.array([scorer.corpus("bleu", row) for row in sums.tolist()])


def forced(where: str, group: Columns, num_draft_tokens: int, cost: float | None, seed: int) -> Forced | None:
    """The teacher-forced numbers of a group; `cost`: 1 + γc, None where c is not known. None where no position is.

    Raises BoundViolation where the numbers contradict theorem 1 or 2.
    """
    totals = group.sums.sum(axis=0)
    if not totals[c.POSITIONS]:
        return None
    means = totals / totals[c.POSITIONS]
    links = chain(means[c.PER_PASS], means[p.ACCEPTANCE], means[p.KL], means[p.CROSS_ENTROPY], num_draft_tokens)
    check_chain(where, links)
    check_fitness(where, means[p.ACCEPTANCE], means[p.TARGET_MISFIT], means[p.DRAFT_MISFIT])

    def mean(column: int, bounds: Bounds = (0.0, np.inf)) -> Metric:
        return ratio(group, column, c.POSITIONS, seed, bounds=bounds)

    return Forced(
        num_positions=int(totals[c.POSITIONS]),
        cross_entropy=mean(p.CROSS_ENTROPY),
        kl=mean(p.KL),
        tv=mean(p.TV, SHARE),
        acceptance_rate=mean(p.ACCEPTANCE, SHARE),
        target_misfit=mean(p.TARGET_MISFIT, SHARE),
        draft_misfit=mean(p.DRAFT_MISFIT, SHARE),
        excluded=float(means[p.EXCLUDED]),
        tokens_per_pass=links,
        speedup_expected=Metric() if cost is None else ratio(group, c.PER_PASS, c.POSITIONS, seed, 1 / cost),
        speedup=None if cost is None else links.divided_by(cost),
    )


def ranked(group: GroupNumbers, found: Representation | None) -> GroupNumbers:
    """The group with the rank of its language among those that the drafter writes on an empty prompt."""
    code = known(group.language) if group.language else None
    if found is None or code is None:
        return group
    share = next((each for each in found.languages if each.language == code), None)
    rank = share.rank if share else len(found.languages) + 1
    return group.model_copy(update={"representation_rank": rank, "representation_share": share.share if share else 0.0})
