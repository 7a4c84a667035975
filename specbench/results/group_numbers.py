"""The numbers of `specbench fairness` that a row holds: of one group, or of all groups together.

Rates are shares, divergences nats. Intervals are of 95 %, over prompts drawn anew.
"""

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from specbench.results.bootstrap import Metric


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BoundChain(Frozen):
    """Theorem 1, each link at least the next: E[F(α(s))] ≥ F(α_T) ≥ F(max(0, 1 − √(KL_T/2))) ≥ the same with D_T, all
    in emitted tokens per target pass, or all divided by 1 + γc."""

    expected: FiniteFloat
    of_acceptance: FiniteFloat
    of_kl: FiniteFloat
    of_cross_entropy: FiniteFloat

    def divided_by(self, cost: float) -> "BoundChain":
        """Tokens per pass as speed-ups, given the cost 1 + γc of a step in target passes."""
        return BoundChain(**{name: value / cost for name, value in self.model_dump().items()})


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
