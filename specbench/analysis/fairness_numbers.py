"""What a fairness report holds. Rates are shares, divergences nats.

Intervals are 95 %, over prompts drawn anew: expanded percentiles, moved back by their bias (`spread.estimate`). Only
those of acceptance rate, acceptance length and speed-up as measured in one group are made as in a row of a
leaderboard (`results.bootstrap`).
"""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from specbench.core.errors import ConfigError
from specbench.results.bootstrap import Metric

TOLERANCE = 1e-9  # sums of float64 numbers


class BoundViolation(ConfigError):
    """Numbers that contradict a theorem: they are not of one family, or a model's output is not what it should be."""


class BoundChain(BaseModel):
    """Theorem 1, each link at least the next: E[F(α(s))] ≥ F(α_T) ≥ F(max(0, 1 − √(KL_T/2))) ≥ the same with D_T, all
    in emitted tokens per target pass, or all divided by 1 + γc."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    expected: FiniteFloat
    of_acceptance: FiniteFloat
    of_kl: FiniteFloat
    of_cross_entropy: FiniteFloat

    def divided_by(self, cost: float) -> "BoundChain":
        """Tokens per pass as speed-ups, given the cost 1 + γc of a step in target passes."""
        return BoundChain(**{name: value / cost for name, value in self.model_dump().items()})


def tokens_per_pass(rate: NDArray[np.float64], num_draft_tokens: int) -> NDArray[np.float64]:
    """F(a) = Σ_{k=0..γ} a^k for acceptance rates of any shape (theorem 1; arXiv:2211.17192, theorem 3.8)."""
    return np.asarray(np.sum([rate**k for k in range(num_draft_tokens + 1)], axis=0))


def bound_chain(
    expected: float, acceptance: float, kl: float, cross_entropy: float, num_draft_tokens: int
) -> BoundChain:
    """The links of theorem 1 from the means over positions: E[F(α(s))], α_T, KL_T and D_T (nats)."""

    def at(rate: float) -> float:
        return float(tokens_per_pass(np.asarray(rate, dtype=np.float64), num_draft_tokens))

    return BoundChain(expected=expected, of_acceptance=at(acceptance), of_kl=at(pinsker(kl)),
                 of_cross_entropy=at(pinsker(cross_entropy)))  # fmt: skip


def pinsker(divergence: float) -> float:
    """max(0, 1 − √(d/2)): no acceptance rate with a divergence of d nats is below it."""
    return max(0.0, 1.0 - math.sqrt(divergence / 2))


def check_bounds(where: str, links: BoundChain) -> None:
    """Raise BoundViolation, with the numbers, where theorem 1 does not hold."""
    values = list(links.model_dump().items())
    for (upper, high), (lower, low) in pairwise(values):
        if high < low - TOLERANCE * max(1.0, abs(low)):
            shown = ", ".join(f"{name} = {value:.6f}" for name, value in values)
            raise BoundViolation(
                f"{where}: theorem 1 is violated: {upper} < {lower} in tokens per target pass ({shown}): the numbers "
                "are not of the same positions and distributions"
            )


def check_fitness(where: str, acceptance: float, target_misfit: float, draft_misfit: float) -> None:
    """Raise BoundViolation, with the numbers, where |α_T − (1 − r_q)| ≤ r_p (theorem 2) does not hold.

    Its assumption r_p ≤ r_q is not needed: the triangle inequality holds without it.
    """
    gap = abs(acceptance - (1.0 - draft_misfit))
    if gap > target_misfit + TOLERANCE:
        raise BoundViolation(
            f"{where}: theorem 2 is violated: |α_T − (1 − r_q)| = {gap:.6f} > r_p = {target_misfit:.6f} "
            f"(α_T = {acceptance:.6f}, r_q = {draft_misfit:.6f}): the numbers are not of the same positions and "
            "distributions"
        )


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasuredGroup(Frozen):
    """From a run: of processed distributions, on the positions that were drafted."""

    acceptance_rate: Metric
    mean_acceptance_length: Metric
    speedup: Metric
    bleu: Metric | None = None
    adjusted_acceptance: Metric | None = None  # α·BLEU, 0 … 100 (figure 7)


class ForcedGroup(Frozen):
    """Teacher-forced: raw distributions of both models, on the positions of the reference texts."""

    num_positions: int
    cross_entropy: Metric  # D_T
    kl: Metric
    tv: Metric
    acceptance_rate: Metric  # α_T
    target_misfit: Metric  # r_p; the fitness is 1 − r_p
    draft_misfit: Metric  # r_q
    excluded: float  # mass of p on tokens that q gives no probability; D and KL count them as the smallest float32
    tokens_per_pass: BoundChain
    speedup_expected: Metric  # S_T = E[F(α(s))]/(1 + γc); null where c is not known
    speedup: BoundChain | None = None  # tokens_per_pass ÷ (1 + γc)


class GroupNumbers(Frozen):
    """One group: a subset of a task, for most a language."""

    task: str
    subset: str
    language: str | None
    num_prompts: int
    measured: MeasuredGroup | None = None
    forced: ForcedGroup | None = None
    representation_rank: int | None = None  # as representation.Share; the languages that it never wrote are last
    representation_share: float | None = None


class GroupSpread(Frozen):
    """How unequal a number is over the groups."""

    variance: Metric
    max_over_min: Metric
    worst: str
    best: str


class Correlations(Frozen):
    """Spearman's ρ over groups; `…_over_prompts` over single prompts, as figure 2a. The intervals are over prompts: of
    `representation_…` they take the shares as they are, and leave out that another sample of the drafter's texts would
    give others."""

    representation_and_acceptance: Metric | None = None  # share with α_T: above 0 where well represented languages gain
    representation_and_measured: Metric | None = None
    fitness_and_acceptance: Metric | None = None  # 1 − r_q with α_T
    fitness_and_measured: Metric | None = None
    fitness_and_acceptance_over_prompts: float | None = None


class Family(Frozen):
    """All groups of a drafter together. `unfairness`: 𝒰 in nats², `lowest`: the group of D_min."""

    groups: tuple[str, ...]
    unfairness: Metric | None = None
    lowest: str | None = None
    excluded: dict[str, float] = Field(default_factory=dict)  # of every group that is teacher-forced, as in `Forced`
    spreads: dict[str, GroupSpread]  # of acceptance_rate, speedup (measured), forced_acceptance_rate, forced_speedup
    correlations: Correlations


class DrafterReport(Frozen):
    """One drafter. `draft_length`: in the words of a run's caption, None where none measured it; `cost_ratio`: c over
    all groups of its run; `problem`: why nothing is teacher-forced."""

    label: str
    drafter: str | None
    revision: str | None
    run: str | None
    method: str | None
    num_draft_tokens: int
    draft_length: str | None = None
    cost_ratio: float | None
    problem: str | None
    num_texts_represented: int | None = None
    prompt_represented: str | None = None  # what these texts go on from, as representation.Representation
    groups: dict[str, GroupNumbers]
    family: Family


class NumberChange(Frozen):
    """A number before and after; `difference`: paired, after − before; `percent`: of the number before. All four are of
    the same resamples."""

    before: Metric
    after: Metric
    difference: Metric
    percent: Metric


class DrafterComparison(Frozen):
    """Two drafters on the same prompts. `groups`: by group, `family`: over all; the changes by the number's name.
    `excluded_before`, `excluded_after`: by group, as in `Forced`."""

    before: str
    after: str
    excluded_before: dict[str, float]
    excluded_after: dict[str, float]
    groups: dict[str, dict[str, NumberChange]]
    family: dict[str, NumberChange]


class FairnessReport(Frozen):
    """Everything that `specbench fairness` says. `num_left_out`: records that not all runs hold."""

    target: str
    target_revision: str | None
    reference: str
    seed: int
    num_samples: int
    num_prompts: int
    num_left_out: int
    runs: tuple[str, ...]
    drafters: tuple[DrafterReport, ...]
    comparison: DrafterComparison | None = None
