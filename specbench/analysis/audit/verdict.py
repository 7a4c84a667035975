"""What an audit says about a method, and the evidence for it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from specbench.specs.method import MethodSpec

VerdictName = Literal[
    "lossless", "greedy equal", "near-tie only", "diverged", "lossy by design", "undecided", "not run"
]
RecordVerdict = Literal["greedy equal", "near-tie only", "diverged", "lossy by design", "not audited"]
FALSE_ALARM = 1e-3  # the distribution test of a correct method fails with a smaller probability
FAILS_BELOW = FALSE_ALARM / 2  # its p-value is an approximation: this leaves room


class Evidence(BaseModel):
    """Base of all parts of an audit's report."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Difference(Evidence):
    """The first token at which a method's greedy output is not AR's.

    `position` counts new tokens from 0; a token is null where the output had ended. `gap` is how far the lower of the
    two tokens' logits is below the highest of the target's logits there; null where one output had ended.
    """

    prompt: str
    position: int
    ar_token: str | None
    method_token: str | None
    gap: float | None
    near_tie: bool


class Greedy(Evidence):
    """A method's greedy outputs against AR's. `example` is the first difference that is no near-tie, else the first.

    `num_judged` counts the draft tokens that the target judged on the way; null for a decoder that does not count.
    """

    num_prompts: int
    num_equal: int
    num_near_ties: int
    num_judged: int | None
    median_position: float | None  # of the first differences
    example: Difference | None

    @property
    def num_diverged(self) -> int:
        return self.num_prompts - self.num_equal - self.num_near_ties


class Noise(Evidence):
    """How much the target's own logits depend on how many tokens one pass scores.

    `num_changed` counts prompts at which AR, computed with other query lengths, picks another token somewhere.
    `max_gap_change` is the largest change of a gap between the highest logit and one of the next nine; `tolerance`,
    the gap of a near-tie, is twice that. `mean_square_change` is E_p[(Δ ln p)²] per position: the noise of a correct
    method's probabilities.
    """

    num_prompts: int
    num_positions: int
    num_changed: int
    max_gap_change: float
    tolerance: float
    mean_square_change: float


class Deviation(Evidence):
    """The drawn token whose count is farthest from what the target gives it, after a prompt and the tokens drawn."""

    prompt: str
    drawn: str
    token: str
    num_observed: int
    num_expected: float


class Distribution(Evidence):
    """The test of a method's draws against the target's exact probabilities; log p in nats per token.

    `p_by_token` holds the p-value of the counts of the first, second, … token; null where too few draws share a prefix.
    Accepted, recovered and bonus tokens are counted over all draws; null for decoders that do not count.
    """

    num_draws: int
    num_tokens: int
    p_value: float
    p_by_token: list[float | None]
    mean_log_p: float
    expected_log_p: float
    standard_error: float
    num_drafted: int | None
    num_accepted: int | None
    num_recovered: int | None
    num_bonus: int | None
    example: Deviation | None

    @property
    def failed(self) -> bool:
        return self.p_value < FAILS_BELOW


class Control(Evidence):
    """A deliberately wrong method in the same test with as many draws: caught, or the draws are too few."""

    name: str
    distribution: Distribution

    @property
    def caught(self) -> bool:
        return self.distribution.failed


class Verdict(Evidence):
    """What the audit says about one method. `reason` explains everything but "lossless"."""

    method: str
    verdict: VerdictName
    declared_lossless: bool | None  # null: external code that claims nothing
    reason: str | None = None
    greedy: Greedy | None = None
    distribution: Distribution | None = None


def declaration(method: MethodSpec) -> bool | None:
    """Whether a method is declared lossless; null for external code that claims nothing."""
    return method.lossless or (False if method.decoder is None else None)


def greedy_verdict(declared_lossless: bool | None, greedy: Greedy | None) -> VerdictName:
    """What the greedy outputs alone say; without any, nothing speaks against a method."""
    if declared_lossless is False:
        return "lossy by design"
    if greedy is not None and greedy.num_diverged:
        return "diverged"
    return "near-tie only" if greedy is not None and greedy.num_near_ties else "lossless"


def decide(
    method: str,
    declared_lossless: bool | None,
    greedy: Greedy | None,
    distribution: Distribution | None,
    doubt: str | None = None,
    note: str | None = None,
    greedy_only: bool = False,
) -> Verdict:
    """The verdict on a method from its evidence. `doubt` says why what was tried proves nothing, if so; `note` what
    could not be done. Of a method that is `greedy_only` its greedy outputs are all there is."""
    name = greedy_verdict(declared_lossless, greedy)
    reasons = ["its greedy output is not AR's"] if name == "diverged" else []
    if name != "lossy by design" and distribution is not None and distribution.failed:
        name = "diverged"
        reasons.append("its draws do not follow the target's probabilities")
    if name in ("lossless", "near-tie only") and doubt is not None:
        name = "undecided"
        reasons.append(doubt)
    if name == "lossless" and greedy is not None and greedy_only:
        name = "greedy equal"
    if name == "lossless" and (greedy is None or distribution is None):  # one half of the evidence is no proof
        name = "undecided"
        reasons.append("its greedy output was not compared" if greedy is None else "nothing was drawn")
    if greedy is None and distribution is None:
        name = "not run"
    return Verdict(
        method=method, verdict=name, declared_lossless=declared_lossless,
        reason="; ".join([*reasons, *([note] if note else [])]) or None, greedy=greedy, distribution=distribution,
    )  # fmt: skip


def verdict_of_records(
    method: MethodSpec, *, greedy: bool, num_records: int, num_different: int, num_near_ties: int
) -> RecordVerdict:
    """Returns what the answers of a run say of a method.

    Equal answers are "greedy equal": that a method is lossless at a temperature, only the audit's draws can say. Draws
    in records prove nothing one by one, so a sampled run is "not audited", and so is one without records.
    """
    if declaration(method) is False:
        return "lossy by design"
    if not greedy or not num_records:
        return "not audited"
    if not num_different:
        return "greedy equal"
    return "near-tie only" if num_near_ties == num_different else "diverged"
