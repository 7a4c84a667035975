"""Sums per prompt → the numbers of one group, with the theorems checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from specbench.analysis.fairness import forced as p
from specbench.analysis.fairness.forced import ACCEPTANCE, NUM_COLUMNS, Numbers
from specbench.analysis.fairness.numbers import chain, check_chain, check_fitness, tokens_per_pass
from specbench.analysis.fairness.spread import Array, estimate, ratios
from specbench.analysis.representation import Representation
from specbench.results.acceptance import timed_tokens
from specbench.results.bootstrap import SHARE, Bounds, Metric, Prompts
from specbench.results.row import ForcedNumbers, GroupNumbers, MeasuredNumbers
from specbench.results.units import PERCENT
from specbench.running.records import ACCEPTED, EMITTED, JUDGED, Generation, Key, Record, step_sum
from specbench.tasks.scoring.contract import Scorer
from specbench.tasks.scoring.language import known

# After the columns of positions.py, per prompt: Σ F(α(s)) and the number of positions, …
PER_PASS: Final = NUM_COLUMNS
POSITIONS: Final = NUM_COLUMNS + 1
# … Σ accepted/judged and the generations that have it, emitted tokens and steps, …
RATES: Final = NUM_COLUMNS + 2
RATED: Final = NUM_COLUMNS + 3
EMITTED_TOKENS: Final = NUM_COLUMNS + 4
STEPS: Final = NUM_COLUMNS + 5
# … and tokens and seconds of the method and of AR.
TOKENS: Final = NUM_COLUMNS + 6
SECONDS: Final = NUM_COLUMNS + 7
AR_TOKENS: Final = NUM_COLUMNS + 8
AR_SECONDS: Final = NUM_COLUMNS + 9
WIDTH: Final = NUM_COLUMNS + 10

Prompt = tuple[str, str, int]


@dataclass(frozen=True)
class Columns:
    """One group: the sums of each prompt [num_prompts, WIDTH], and its statistics of BLEU where answers are scored by
    it [num_prompts, num_statistics]."""

    sums: Array
    bleu: Array | None = None


def columns_of(
    keys: Sequence[Key], records: Mapping[Key, Record], method: str | None, numbers: Numbers | None,
    num_draft_tokens: int,
) -> Columns:  # fmt: skip
    """The sums of a group's records (repeats and turns of a prompt together); what is not there is 0. `method`: None
    where nothing was measured, `numbers`: None where nothing is teacher-forced."""
    rows: dict[Prompt, Array] = {}
    bleu: dict[Prompt, Array] = {}
    for key in keys:
        sums = rows.setdefault(key[:3], np.zeros(WIDTH))
        if numbers is not None and key in numbers:
            sums[: POSITIONS + 1] += forced_sums(numbers[key], num_draft_tokens)
        if method is not None:
            generations = records[key]["methods"]
            sums[POSITIONS + 1 :] += measured_sums(generations[method], generations["ar"])
            statistics = generations[method].get("statistics", {}).get("bleu")
            if statistics is not None:
                bleu[key[:3]] = bleu.get(key[:3], 0) + np.array(statistics, dtype=np.float64)
    whole = np.stack(list(bleu.values())) if bleu and bleu.keys() == rows.keys() else None
    return Columns(np.stack(list(rows.values())), whole)


def forced_sums(numbers: Array, num_draft_tokens: int) -> Array:
    """Sums over the positions of one text, with Σ F(α(s)) and their number."""
    per_pass = tokens_per_pass(numbers[:, ACCEPTANCE], num_draft_tokens)
    return np.concatenate([numbers.sum(axis=0), [per_pass.sum(), len(numbers)]])


def measured_sums(own: Generation, baseline: Generation) -> Array:
    """The columns of one generation and AR's: acceptance as results.acceptance counts it, speed as results.speed."""
    judged = step_sum(own, JUDGED)
    is_timed = min(timed_tokens(own), timed_tokens(baseline)) > 0
    pair: Sequence[Any] = (own, baseline)
    speeds = [value * is_timed for each in pair for value in (timed_tokens(each), each["decode_seconds"])]
    return np.array([
        step_sum(own, ACCEPTED) / judged if judged else 0.0, float(judged > 0), step_sum(own, EMITTED),
        len(own["steps"]), *speeds,
    ], dtype=np.float64)  # fmt: skip


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
    return ratios(sums, TOKENS, SECONDS) / ratios(sums, AR_TOKENS, AR_SECONDS)


def measured(group: Columns, scorer: Scorer | None, seed: int) -> MeasuredNumbers:
    """The measured numbers of a group; `scorer`: of its answers."""
    bleu, adjusted = None, None
    if group.bleu is not None and scorer is not None:
        bleu = estimate([group.bleu], lambda sums: corpus_bleu(sums[0], scorer), seed, *PERCENT)
        both = np.hstack([group.sums[:, [RATES, RATED]], group.bleu])
        adjusted = estimate(
            [both], lambda sums: ratios(sums, 0, 1)[..., 0] * corpus_bleu(sums[0][:, 2:], scorer), seed, *PERCENT
        )
    return MeasuredNumbers(
        acceptance_rate=as_in_a_row(group, RATES, RATED, seed=seed, bounds=SHARE),
        mean_acceptance_length=as_in_a_row(group, EMITTED_TOKENS, STEPS, seed=seed),
        speedup=as_in_a_row(group, TOKENS, SECONDS, AR_TOKENS, AR_SECONDS, seed=seed),
        bleu=bleu,
        adjusted_acceptance=adjusted,
    )


def corpus_bleu(sums: Array, scorer: Scorer) -> Array:
    """The corpus score of summed statistics: [num_resamples, num_statistics] → [num_resamples]."""
    return np.array([scorer.corpus("bleu", row) for row in sums.tolist()])


def forced(where: str, group: Columns, num_draft_tokens: int, cost: float | None, seed: int) -> ForcedNumbers | None:
    """The teacher-forced numbers of a group; `cost`: 1 + γc, None where c is not known. None where no position is.

    Raises BoundViolation where the numbers contradict theorem 1 or 2.
    """
    totals = group.sums.sum(axis=0)
    if not totals[POSITIONS]:
        return None
    means = totals / totals[POSITIONS]
    links = chain(means[PER_PASS], means[p.ACCEPTANCE], means[p.KL], means[p.CROSS_ENTROPY], num_draft_tokens)
    check_chain(where, links)
    check_fitness(where, means[p.ACCEPTANCE], means[p.TARGET_MISFIT], means[p.DRAFT_MISFIT])

    def mean(column: int, bounds: Bounds = (0.0, np.inf)) -> Metric:
        return ratio(group, column, POSITIONS, seed, bounds=bounds)

    return ForcedNumbers(
        num_positions=int(totals[POSITIONS]),
        cross_entropy=mean(p.CROSS_ENTROPY),
        kl=mean(p.KL),
        tv=mean(p.TV, SHARE),
        acceptance_rate=mean(p.ACCEPTANCE, SHARE),
        target_misfit=mean(p.TARGET_MISFIT, SHARE),
        draft_misfit=mean(p.DRAFT_MISFIT, SHARE),
        excluded=float(means[p.EXCLUDED]),
        tokens_per_pass=links,
        speedup_expected=Metric() if cost is None else ratio(group, PER_PASS, POSITIONS, seed, 1 / cost),
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
