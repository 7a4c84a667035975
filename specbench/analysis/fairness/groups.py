"""The numbers of each group and over all groups, from sums over prompts; theorems 1 and 2.

Rates are shares, divergences are nats. Intervals are 95 % bootstrap intervals over prompts (`estimate`). Only a group's
measured acceptance rate, acceptance length and speed-up have the intervals of a leaderboard row.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from specbench.analysis.fairness.drafters import (
    ACCEPTANCE,
    CROSS_ENTROPY,
    DRAFT_MISFIT,
    EXCLUDED,
    KL,
    NUM_COLUMNS,
    TARGET_MISFIT,
    TOKEN_LOSS,
    TV,
    Numbers,
)
from specbench.core.errors import ConfigError
from specbench.core.metric import PERCENT
from specbench.records.records import Key, Record
from specbench.results.answers import speed_columns
from specbench.results.fairness import (
    BoundChain,
    Correlations,
    FairnessSummary,
    ForcedNumbers,
    GroupNumbers,
    GroupSpread,
    MeasuredNumbers,
)
from specbench.statistics.bootstrap import SHARE, Array, Bounds, Estimate, Resampler, ratio_of
from specbench.tasks.scoring import Scorer
from specbench.training.passes import unfairness

Values = Callable[[Sequence[Array]], Array]  # the sums of m groups [..., num_columns] → the value of each [..., m]


def mean(values: Array) -> Array:
    return np.asarray(values.mean(axis=-1))


def variance(values: Array) -> Array:
    return np.asarray(values.var(axis=-1))  # (1/m) Σ (a − mean)²


def max_over_min(values: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(values.max(axis=-1) / values.min(axis=-1))  # infinite if the smallest is 0


def spearman(ranked: Array, values: Array) -> Array:
    """Returns Spearman's ρ of `ranked` [m] or [..., m] and `values` [..., m] over the last axis; nan if either is
    constant or m < 3."""
    ranked = np.broadcast_to(ranked, values.shape)
    if values.shape[-1] < 3:
        return np.full(values.shape[:-1], np.nan)
    ranks = (stats.rankdata(each, axis=-1) for each in (ranked, values))
    a, b = (each - each.mean(axis=-1, keepdims=True) for each in ranks)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1)))


def ratios(sums: Sequence[Array], *columns: int) -> Array:
    """Returns the first column ÷ the second of every group, for four columns ÷ (third ÷ fourth): m arrays [...,
    num_columns] → [..., m]."""
    return np.stack([ratio_of(each[..., list(columns)]) for each in sums], axis=-1)


def estimate(
    groups: Sequence[Array], function: Values, seed: int, least: float = -np.inf, most: float = np.inf
) -> Estimate:
    """Returns a function of the sums over the prompts of each group, with its interval (`Resampler.of_sums`). The
    numbers of two drafters in one row of a group are paired."""
    return Resampler.of_units(sum(map(len, groups)), seed).of_sums(groups, function, least, most)


TOLERANCE = 1e-7  # sums of float64 numbers; a rounding of 1e-16 of a divergence is 1e-8 under the root


class BoundViolation(ConfigError):
    """Numbers that contradict a theorem: they come from different texts, or a model's output is wrong."""


def tokens_per_pass(rate: Array, num_draft_tokens: int) -> Array:
    """Returns F(a) = Σ_{k=0..γ} a^k for acceptance rates of any shape (theorem 1; arXiv:2211.17192, theorem 3.8)."""
    return np.asarray(np.sum([rate**k for k in range(num_draft_tokens + 1)], axis=0))


def bound_chain(
    expected: float, acceptance: float, kl: float, cross_entropy: float, num_draft_tokens: int
) -> BoundChain:
    """Returns the links of theorem 1 from the means over positions: E[F(α(s))], α_T, KL_T and D_T (nats)."""
    rates = np.array([acceptance, pinsker(kl), pinsker(cross_entropy)])
    chain = zip(BoundChain.model_fields, [expected, *tokens_per_pass(rates, num_draft_tokens).tolist()], strict=True)
    return BoundChain(**dict(chain))


def pinsker(divergence: float) -> float:
    """Returns max(0, 1 − √(d/2)), the least acceptance rate at a divergence of d nats."""
    return max(0.0, 1.0 - math.sqrt(divergence / 2))


def check_bounds(where: str, links: BoundChain) -> None:
    """Raises BoundViolation, with the numbers, if theorem 1 does not hold."""
    values = list(links.model_dump().items())
    for (upper, high), (lower, low) in pairwise(values):
        if high < low - TOLERANCE * max(1.0, abs(low)):
            shown = ", ".join(f"{name} = {value:.6f}" for name, value in values)
            raise BoundViolation(
                f"{where}: theorem 1 is violated: {upper} < {lower} in tokens per target pass ({shown}): the numbers "
                "come from different positions or distributions"
            )


def check_fitness(where: str, acceptance: float, target_misfit: float, draft_misfit: float) -> None:
    """Raises BoundViolation, with the numbers, if |α_T − (1 − r_q)| ≤ r_p (theorem 2) does not hold.

    The theorem's assumption r_p ≤ r_q is not needed: the triangle inequality holds without it.
    """
    gap = abs(acceptance - (1.0 - draft_misfit))
    if gap > target_misfit + TOLERANCE:
        raise BoundViolation(
            f"{where}: theorem 2 is violated: |α_T − (1 − r_q)| = {gap:.6f} > r_p = {target_misfit:.6f} "
            f"(α_T = {acceptance:.6f}, r_q = {draft_misfit:.6f}): the numbers come from different positions or "
            "distributions"
        )


# Columns of a prompt's sums after the columns of `position_numbers`: Σ F(α(s)) and the number of positions; Σ
# accepted/verified and the number of generations with verified tokens; emitted tokens and steps; tokens and seconds of
# the method; tokens and seconds of AR.
WIDTH = NUM_COLUMNS + 10
(PER_PASS, POSITIONS, RATES, RATED, EMITTED_TOKENS, STEPS, TOKENS, SECONDS, AR_TOKENS, AR_SECONDS) = range(
    NUM_COLUMNS, WIDTH
)


@dataclass(frozen=True)
class Number:
    """A number that groups and drafters are compared by: a ratio of sums over the prompts of a group (`ratios`).
    `bounds`: its least and its greatest value."""

    label: str
    columns: tuple[int, ...]
    bounds: Bounds = (0.0, np.inf)


NUMBERS = {
    "cross_entropy": Number("cross-entropy (D)", (CROSS_ENTROPY, POSITIONS)),
    "kl": Number("divergence (KL)", (KL, POSITIONS)),
    "acceptance_rate": Number("measured rate (α)", (RATES, RATED), SHARE),
    "speedup": Number("speed-up", (TOKENS, SECONDS, AR_TOKENS, AR_SECONDS)),
    "forced_acceptance_rate": Number("acceptance rate (α_T)", (ACCEPTANCE, POSITIONS), SHARE),
    "forced_speedup": Number("expected speed-up (S_T)", (PER_PASS, POSITIONS)),  # ÷ the cost of a step
}
DIVERGENCES = ("cross_entropy", "kl")  # they depend on the tokens that a drafter excludes


@dataclass(frozen=True)
class GroupSums:
    """The sums of each prompt of a group, [num_prompts, WIDTH].

    `num_draft_tokens`: γ; the largest one of several routes. `cost_ratio`: c; None if it is unknown, and for several
    routes. `bleu`: the statistics of BLEU if it scores the answers, [num_prompts, num_statistics].
    """

    sums: Array
    num_draft_tokens: int
    cost_ratio: float | None = None
    bleu: Array | None = None

    @property
    def step_cost(self) -> float | None:
        return None if self.cost_ratio is None else 1 + self.num_draft_tokens * self.cost_ratio


def values_of(groups: Iterable[GroupSums]) -> dict[str, Values]:
    """Returns the functions that give the values of NUMBERS in these groups; without the expected speed-up if a draft
    cost is unknown."""
    costs = [group.step_cost for group in groups]

    def values(name: str) -> Values:
        divisor = np.array(costs, dtype=np.float64) if name == "forced_speedup" else 1.0
        return lambda sums: ratios(sums, *NUMBERS[name].columns) / divisor

    return {name: values(name) for name in NUMBERS if name != "forced_speedup" or None not in costs}


def group_sums(
    keys: Sequence[Key], records: Mapping[Key, Record], method: str | None, numbers: Numbers, num_draft_tokens: int,
    cost_ratio: float | None = None,
) -> GroupSums:  # fmt: skip
    """Returns the sums of a group's records, by prompt (with all its repeats and turns); a missing number counts as 0.
    `method`: None if nothing was measured. `numbers`: by position of the teacher-forced texts."""
    rows: dict[tuple[Any, ...], Array] = {}
    bleu: dict[tuple[Any, ...], Array] = {}
    for key in keys:
        prompt = key[:3]
        sums = rows.setdefault(prompt, np.zeros(WIDTH))
        if key in numbers:
            sums[: POSITIONS + 1] += forced_sums(numbers[key], num_draft_tokens)
        if method is not None:
            own, baseline = (records[key].methods[name] for name in (method, "ar"))
            speeds = [value for [value] in speed_columns([[own], [baseline]])]
            rate = own.num_accepted / own.num_verified if own.num_verified else 0.0
            sums[POSITIONS + 1 :] += [rate, own.num_verified > 0, own.num_emitted, len(own.steps), *speeds]
            if (statistics := own.statistics.get("bleu")) is not None:
                bleu[prompt] = bleu.get(prompt, 0) + np.array(statistics, dtype=np.float64)
    all_bleu = np.stack(list(bleu.values())) if bleu and bleu.keys() == rows.keys() else None
    return GroupSums(np.stack(list(rows.values())), num_draft_tokens, cost_ratio, all_bleu)


def forced_sums(numbers: Array, num_draft_tokens: int) -> Array:
    """Returns the sums over the positions of one text, then Σ F(α(s)) and the number of positions."""
    per_pass = tokens_per_pass(numbers[:, ACCEPTANCE], num_draft_tokens)
    return np.concatenate([numbers.sum(axis=0), [per_pass.sum(), len(numbers)]])


def measured_numbers(group: GroupSums, scorer: Scorer | None, seed: int) -> MeasuredNumbers:
    prompts = Resampler.of_units(len(group.sums), seed)
    columns = group.sums.T
    found = MeasuredNumbers(
        acceptance_rate=prompts.ratio(columns[RATES], columns[RATED], bounds=SHARE),
        mean_acceptance_length=prompts.ratio(columns[EMITTED_TOKENS], columns[STEPS]),
        speedup=prompts.ratio(columns[TOKENS], columns[SECONDS], columns[AR_TOKENS], columns[AR_SECONDS]),
    )
    if group.bleu is None or scorer is None:
        return found

    def corpus_bleu(sums: Array) -> Array:
        return np.array([scorer.corpus("bleu", row) for row in sums.tolist()])

    bleu = estimate([group.bleu], lambda sums: corpus_bleu(sums[0]), seed, *PERCENT)
    # α · BLEU: the rates and the statistics of a prompt are resampled together.
    both = np.hstack([group.sums[:, [RATES, RATED]], group.bleu])
    times_rate = estimate([both], lambda s: ratios(s, 0, 1)[..., 0] * corpus_bleu(s[0][:, 2:]), seed, *PERCENT)
    return found.model_copy(update={"bleu": bleu, "adjusted_acceptance": times_rate})


def forced_numbers_of(where: str, group: GroupSums, seed: int) -> ForcedNumbers | None:
    """Returns the teacher-forced numbers of a group; None if it has no position.

    Raises BoundViolation if the numbers contradict theorem 1 or 2.
    """
    totals = group.sums.sum(axis=0)
    cost = group.step_cost
    if not totals[POSITIONS]:
        return None
    means = totals / totals[POSITIONS]
    links = bound_chain(means[PER_PASS], means[ACCEPTANCE], means[KL], means[CROSS_ENTROPY], group.num_draft_tokens)
    check_bounds(where, links)
    check_fitness(where, means[ACCEPTANCE], means[TARGET_MISFIT], means[DRAFT_MISFIT])

    def mean(column: int, bounds: Bounds = (0.0, np.inf), factor: float = 1.0) -> Estimate:
        return estimate([group.sums], lambda s: factor * ratios(s, column, POSITIONS)[..., 0], seed, *bounds)

    return ForcedNumbers(
        num_positions=int(totals[POSITIONS]),
        cross_entropy=mean(CROSS_ENTROPY),
        token_loss=mean(TOKEN_LOSS),
        kl=mean(KL),
        tv=mean(TV, SHARE),
        acceptance_rate=mean(ACCEPTANCE, SHARE),
        target_misfit=mean(TARGET_MISFIT, SHARE),
        draft_misfit=mean(DRAFT_MISFIT, SHARE),
        excluded=float(means[EXCLUDED]),
        tokens_per_pass=links,
        speedup_expected=Estimate() if cost is None else mean(PER_PASS, factor=1 / cost),
        speedup=None if cost is None else links.divided_by(cost),
    )


STATISTICS = {"mean": mean, "variance": variance, "max_over_min": max_over_min}  # over groups


def statistic_bounds(statistic: str, bounds: Bounds) -> Bounds:
    """Returns the least and the greatest value of a statistic of numbers within bounds. The variance is greatest with
    half of the numbers at each bound."""
    widest = ((bounds[1] - bounds[0]) / 2) ** 2
    return {"mean": bounds, "variance": (0.0, widest), "max_over_min": (1.0, np.inf)}[statistic]


def of_values(statistic: Callable[[Array], Array], values: Values) -> Values:
    """Returns a statistic over groups of the number of each group."""
    return lambda sums: statistic(values(sums))


def excluded_masses(groups: Mapping[str, GroupSums]) -> dict[str, float]:
    totals = {name: group.sums.sum(axis=0) for name, group in groups.items()}
    return {name: float(sums[EXCLUDED] / sums[POSITIONS]) for name, sums in totals.items() if sums[POSITIONS]}


def summarize_family(
    groups: Mapping[str, GroupSums], numbers: Mapping[str, GroupNumbers], seed: int
) -> FairnessSummary:
    names, sums = tuple(groups), [group.sums for group in groups.values()]
    totals, values = [group.sum(axis=0) for group in sums], values_of(groups.values())
    spreads = {}
    for name, number in NUMBERS.items():
        if name not in DIVERGENCES and name in values and np.isfinite(found := values[name](totals)).all():
            spread = {
                statistic: estimate(sums, of_values(STATISTICS[statistic], values[name]), seed,
                                    *statistic_bounds(statistic, number.bounds))
                for statistic in ("variance", "max_over_min")
            }  # fmt: skip
            spreads[name] = GroupSpread(**spread, worst=names[int(found.argmin())], best=names[int(found.argmax())])
    is_forced = all(group[POSITIONS] > 0 for group in totals)
    divergence = values["cross_entropy"]
    return FairnessSummary(
        groups=names,
        unfairness=estimate(sums, of_values(unfairness, divergence), seed, least=0.0) if is_forced else None,
        excluded=excluded_masses(groups),
        lowest=names[int(divergence(totals).argmin())] if is_forced else None,
        spreads=spreads,
        correlations=correlations(sums, [numbers[name].representation_share for name in names], seed),
    )


def correlations(sums: Sequence[Array], shares: Sequence[float | None], seed: int) -> Correlations:
    """Returns Spearman's ρ between acceptance and the share of a group's language in the drafter's texts (over groups
    with a known language), and between acceptance and the drafter's fitness (over all groups). An undefined ρ is
    None."""
    represented = [(group, share) for group, share in zip(sums, shares, strict=True) if share is not None]
    groups, known_shares = [group for group, _ in represented], np.array([share for _, share in represented])

    def correlation(of: Sequence[Array], subject: Callable[[Sequence[Array]], Array], rate: str) -> Estimate | None:
        columns = NUMBERS[rate].columns
        found = estimate(of, lambda s: spearman(subject(s), ratios(s, *columns)), seed, -1.0, 1.0) if of else Estimate()
        return None if found.value is None else found

    def share_of(_: Sequence[Array]) -> Array:
        return known_shares

    def fitness(of: Sequence[Array]) -> Array:
        return 1.0 - ratios(of, DRAFT_MISFIT, POSITIONS)

    prompts = np.concatenate(list(sums))  # of all groups

    def over_prompts(rate: str) -> float | None:
        num, den = NUMBERS[rate].columns
        known = prompts[(prompts[:, POSITIONS] > 0) & (prompts[:, den] > 0)]
        if not len(known):
            return None
        found = float(spearman(1.0 - known[:, DRAFT_MISFIT] / known[:, POSITIONS], known[:, num] / known[:, den]))
        return found if np.isfinite(found) else None

    return Correlations(
        representation_and_acceptance=correlation(groups, share_of, "forced_acceptance_rate"),
        representation_and_measured=correlation(groups, share_of, "acceptance_rate"),
        fitness_and_acceptance=correlation(sums, fitness, "forced_acceptance_rate"),
        fitness_and_measured=correlation(sums, fitness, "acceptance_rate"),
        fitness_and_acceptance_over_prompts=over_prompts("forced_acceptance_rate"),
        fitness_and_measured_over_prompts=over_prompts("acceptance_rate"),
    )
