"""The fairness numbers of a row, which `specbench fairness` adds: a group's, or the summary over all groups."""

from pydantic import Field, FiniteFloat

from specbench.statistics.bootstrap import Estimate, FilePart


class BoundChain(FilePart):
    """The bounds of theorem 1, in decreasing order: E[F(α(s))] ≥ F(α_T) ≥ F(max(0, 1 − √(KL_T/2))) ≥
    F(max(0, 1 − √(D_T/2))), all in emitted tokens per target pass, or all divided by 1 + γc."""

    expected: FiniteFloat
    of_acceptance: FiniteFloat
    of_kl: FiniteFloat
    of_cross_entropy: FiniteFloat

    def divided_by(self, cost: float) -> "BoundChain":
        """Returns tokens per pass as speed-ups, given the cost 1 + γc of a step in target passes."""
        return BoundChain(**{name: value / cost for name, value in self.model_dump().items()})


class MeasuredNumbers(FilePart):
    """Numbers of a run, from processed distributions on the positions that were drafted."""

    acceptance_rate: Estimate
    mean_acceptance_length: Estimate
    speedup: Estimate
    bleu: Estimate | None = None
    adjusted_acceptance: Estimate | None = None  # α·BLEU, 0 … 100 (figure 7)


class ForcedNumbers(FilePart):
    """Teacher-forced numbers, from the raw distributions of both models on the positions of the reference texts."""

    num_positions: int
    cross_entropy: Estimate  # D_T = H(p, q)
    token_loss: Estimate | None = None  # mean −log q of the tokens of the texts
    kl: Estimate
    tv: Estimate
    acceptance_rate: Estimate  # α_T
    target_misfit: Estimate  # r_p; the fitness is 1 − r_p
    draft_misfit: Estimate  # r_q
    excluded: float  # mass of p on tokens to which q gives no probability; D and KL use the smallest float32 for these
    tokens_per_pass: BoundChain
    speedup_expected: Estimate  # S_T = E[F(α(s))]/(1 + γc); null where c is not known
    speedup: BoundChain | None = None  # tokens_per_pass ÷ (1 + γc)


class GroupNumbers(FilePart):
    """One group: a subset of a task, usually a language."""

    task: str
    subset: str
    language: str | None
    num_prompts: int
    measured: MeasuredNumbers | None = None
    forced: ForcedNumbers | None = None
    representation_rank: int | None = None  # see representation.LanguageShare; languages never written come last
    representation_share: float | None = None


class GroupSpread(FilePart):
    """The inequality of a number over the groups."""

    variance: Estimate
    max_over_min: Estimate
    worst: str
    best: str


class Correlations(FilePart):
    """Spearman's ρ over groups; `…_over_prompts` over single prompts, as in figure 2a. The intervals resample prompts.
    Those of `representation_…` take the shares as given: they do not cover that another sample of the drafter's texts
    would give other shares."""

    representation_and_acceptance: Estimate | None = None  # share with α_T: > 0 if well represented languages gain
    representation_and_measured: Estimate | None = None
    fitness_and_acceptance: Estimate | None = None  # 1 − r_q with α_T
    fitness_and_measured: Estimate | None = None
    fitness_and_acceptance_over_prompts: float | None = None  # of the same passes; figure 2a has the decoded rate
    fitness_and_measured_over_prompts: float | None = None


class FairnessSummary(FilePart):
    """All groups of a drafter together. `unfairness`: 𝒰 in nats². `lowest`: the group with D_min. `excluded`: by
    teacher-forced group, see ForcedNumbers."""

    groups: tuple[str, ...]
    unfairness: Estimate | None = None
    lowest: str | None = None
    excluded: dict[str, float] = Field(default_factory=dict)
    spreads: dict[str, GroupSpread]  # of acceptance_rate, speedup (measured), forced_acceptance_rate, forced_speedup
    correlations: Correlations
