"""Sums over the prompts of groups → the numbers of each group and of all groups together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from specbench.analysis.fairness_drafters import (
    ACCEPTANCE,
    CROSS_ENTROPY,
    DRAFT_MISFIT,
    EXCLUDED,
    KL,
    NUM_COLUMNS,
    TARGET_MISFIT,
    TV,
    Numbers,
)
from specbench.analysis.fairness_numbers import bound_chain, check_bounds, check_fitness, tokens_per_pass
from specbench.analysis.group_statistics import Array, estimate, max_over_min, ratios, spearman, variance
from specbench.analysis.representation import Representation
from specbench.results.bootstrap import SHARE, Bounds, Metric, Prompts
from specbench.results.metrics import timed_tokens
from specbench.results.row import Correlations, Family, ForcedNumbers, GroupNumbers, GroupSpread, MeasuredNumbers
from specbench.results.units import PERCENT
from specbench.running.records import ACCEPTED, EMITTED, JUDGED, Generation, Key, Record, step_sum
from specbench.specs.languages import known
from specbench.tasks.scoring.contract import Scorer
from specbench.training.passes import unfairness

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
    """The sums of a group's records (repeats and turns of a prompt together); a missing number is 0. `method`: None
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
    """Returns a ratio of sums of one group, with its interval."""
    return estimate([group.sums], lambda sums: factor * ratios(sums, over, under)[..., 0], seed, *bounds)


def as_in_a_row(group: Columns, *columns: int, seed: int, bounds: Bounds | None = None) -> Metric:
    """Returns a ratio of two or four columns' sums over the prompts of one group, with the interval of the
    leaderboard."""
    return Prompts(np.arange(len(group.sums)), seed).ratio(*(group.sums[:, n] for n in columns), bounds=bounds)


def speedups(sums: Sequence[Array]) -> Array:
    """Measured tokens per second over AR's: m arrays → [..., m]."""
    return ratios(sums, TOKENS, SECONDS) / ratios(sums, AR_TOKENS, AR_SECONDS)


def measured_numbers(group: Columns, scorer: Scorer | None, seed: int) -> MeasuredNumbers:
    """Returns the measured numbers of a group; `scorer`: that of its answers."""
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


def forced_group(
    where: str, group: Columns, num_draft_tokens: int, cost: float | None, seed: int
) -> ForcedNumbers | None:
    """Returns the teacher-forced numbers of a group; None where it has no position. `cost`: 1 + γc, None for an unknown
    c.

    Raises BoundViolation where the numbers contradict theorem 1 or 2.
    """
    totals = group.sums.sum(axis=0)
    if not totals[POSITIONS]:
        return None
    means = totals / totals[POSITIONS]
    links = bound_chain(means[PER_PASS], means[ACCEPTANCE], means[KL], means[CROSS_ENTROPY], num_draft_tokens)
    check_bounds(where, links)
    check_fitness(where, means[ACCEPTANCE], means[TARGET_MISFIT], means[DRAFT_MISFIT])

    def mean(column: int, bounds: Bounds = (0.0, np.inf)) -> Metric:
        return ratio(group, column, POSITIONS, seed, bounds=bounds)

    return ForcedNumbers(
        num_positions=int(totals[POSITIONS]),
        cross_entropy=mean(CROSS_ENTROPY),
        kl=mean(KL),
        tv=mean(TV, SHARE),
        acceptance_rate=mean(ACCEPTANCE, SHARE),
        target_misfit=mean(TARGET_MISFIT, SHARE),
        draft_misfit=mean(DRAFT_MISFIT, SHARE),
        excluded=float(means[EXCLUDED]),
        tokens_per_pass=links,
        speedup_expected=Metric() if cost is None else ratio(group, PER_PASS, POSITIONS, seed, 1 / cost),
        speedup=None if cost is None else links.divided_by(cost),
    )


def with_rank(group: GroupNumbers, found: Representation | None) -> GroupNumbers:
    """Returns the group with the rank of its language among the languages that the drafter writes on an empty
    prompt."""
    code = known(group.language) if group.language else None
    if found is None or code is None:
        return group
    share = next((each for each in found.languages if each.language == code), None)
    rank = share.rank if share else len(found.languages) + 1
    return group.model_copy(update={"representation_rank": rank, "representation_share": share.share if share else 0.0})


Values = Callable[[Sequence[Array]], Array]  # the sums of m groups → the value of each [..., m]


def mean_over_positions(column: int) -> Values:
    return lambda sums: ratios(sums, column, POSITIONS)


def measured_rate(sums: Sequence[Array]) -> Array:
    return ratios(sums, RATES, RATED)


def divergence(sums: Sequence[Array]) -> Array:
    return ratios(sums, CROSS_ENTROPY, POSITIONS)


def forced_rate(sums: Sequence[Array]) -> Array:
    return ratios(sums, ACCEPTANCE, POSITIONS)


def forced_speedup(cost: Array) -> Values:
    return lambda sums: ratios(sums, PER_PASS, POSITIONS) / cost


def fitness(sums: Sequence[Array]) -> Array:
    return 1.0 - ratios(sums, DRAFT_MISFIT, POSITIONS)


def excluded_masses(groups: Mapping[str, Columns]) -> dict[str, float]:
    """Returns the mean mass of p on tokens that q excludes, for every group that is teacher-forced."""
    totals = {name: group.sums.sum(axis=0) for name, group in groups.items()}
    return {name: float(sums[EXCLUDED] / sums[POSITIONS]) for name, sums in totals.items() if sums[POSITIONS]}


def values_of(cost: Array | None) -> dict[str, Values]:
    """The numbers whose spread is reported, by name; `cost`: 1 + γc of every group [m]."""
    found: dict[str, Values] = {
        "acceptance_rate": measured_rate, "speedup": speedups, "forced_acceptance_rate": forced_rate,
    }  # fmt: skip
    return found if cost is None else {**found, "forced_speedup": forced_speedup(cost)}


def bounds_of(name: str) -> Bounds:
    """Returns the least and the greatest value that a number of one group can have."""
    return SHARE if name in ("acceptance_rate", "forced_acceptance_rate") else (0.0, np.inf)


def variance_bounds(bounds: Bounds) -> Bounds:
    """Returns the least and the greatest variance of numbers within bounds; the greatest has half of them at each
    end."""
    return 0.0, ((bounds[1] - bounds[0]) / 2) ** 2


def family_of(
    groups: Mapping[str, Columns], numbers: Mapping[str, GroupNumbers], cost: Array | None, seed: int
) -> Family:
    """Returns 𝒰, spreads and correlations; a number that a group lacks is left out."""
    names, sums = tuple(groups), [group.sums for group in groups.values()]
    is_forced = all(group[:, POSITIONS].sum() > 0 for group in sums)
    spreads = {name: spread(names, sums, values, bounds_of(name), seed) for name, values in values_of(cost).items()}
    divergences = divergence([group.sum(axis=0) for group in sums]) if is_forced else None
    return Family(
        groups=names,
        unfairness=estimate(sums, lambda s: unfairness(divergence(s)), seed, least=0.0) if is_forced else None,
        excluded=excluded_masses(groups),
        lowest=None if divergences is None else names[int(divergences.argmin())],
        spreads={name: found for name, found in spreads.items() if found is not None},
        correlations=correlations(sums, [numbers[name].representation_share for name in names], seed),
    )


def spread(
    names: Sequence[str], sums: Sequence[Array], values: Values, bounds: Bounds, seed: int
) -> GroupSpread | None:
    """Returns the spread of a number over the groups; None where a group lacks it."""
    found = values([group.sum(axis=0) for group in sums])
    if not np.isfinite(found).all():
        return None
    return GroupSpread(
        variance=estimate(sums, lambda s: variance(values(s)), seed, *variance_bounds(bounds)),
        max_over_min=estimate(sums, lambda s: max_over_min(values(s)), seed, least=1.0),
        worst=names[int(found.argmin())],
        best=names[int(found.argmax())],
    )


def correlations(sums: Sequence[Array], shares: Sequence[float | None], seed: int) -> Correlations:
    """Returns Spearman's ρ with the share of a group's language in the drafter's texts (groups whose language is
    known), and with the drafter's fitness (all groups)."""
    told = [(group, share) for group, share in zip(sums, shares, strict=True) if share is not None]
    groups, known_shares = [group for group, _ in told], np.array([share for _, share in told])

    def of_share(values: Values) -> Metric | None:
        return correlation(groups, lambda s: spearman(known_shares, values(s)), seed) if told else None

    return Correlations(
        representation_and_acceptance=of_share(forced_rate),
        representation_and_measured=of_share(measured_rate),
        fitness_and_acceptance=correlation(sums, lambda s: spearman(fitness(s), forced_rate(s)), seed),
        fitness_and_measured=correlation(sums, lambda s: spearman(fitness(s), measured_rate(s)), seed),
        fitness_and_acceptance_over_prompts=over_prompts(sums),
    )


def correlation(sums: Sequence[Array], function: Values, seed: int) -> Metric | None:
    """Returns a correlation, in −1 … 1, with its interval; None where it is not defined."""
    found = estimate(sums, function, seed, least=-1.0, most=1.0)
    return None if found.value is None else found


def over_prompts(sums: Sequence[Array]) -> float | None:
    """Spearman's ρ of 1 − r_q and α_T over the prompts of all groups (figure 2a)."""
    prompts = np.concatenate(list(sums))
    prompts = prompts[prompts[:, POSITIONS] > 0]
    means = prompts / prompts[:, [POSITIONS]]
    found = float(spearman(1.0 - means[:, DRAFT_MISFIT], means[:, ACCEPTANCE])) if len(prompts) else np.nan
    return found if np.isfinite(found) else None
