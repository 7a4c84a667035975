"""What an audit says about a method, and the evidence for it."""

from typing import Literal

from specbench.results.verdict import FAILS_BELOW, AuditPart, Greedy

VerdictName = Literal[
    "lossless", "greedy equal", "near-tie only", "diverged", "lossy by design", "undecided", "not run"
]


class Deviation(AuditPart):
    """The drawn token whose count is farthest from what the target gives it, after a prompt and the tokens drawn."""

    prompt: str
    drawn: str
    token: str
    num_observed: int
    num_expected: float


class Distribution(AuditPart):
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


class Control(AuditPart):
    """A deliberately wrong method in the same test with as many draws: caught, or the draws are too few."""

    name: str
    distribution: Distribution

    @property
    def caught(self) -> bool:
        return self.distribution.failed


class Verdict(AuditPart):
    """What the audit says about one method. `reason` explains everything but "lossless"."""

    method: str
    verdict: VerdictName
    declared_lossless: bool | None  # null: external code that claims nothing
    reason: str | None = None
    greedy: Greedy | None = None
    distribution: Distribution | None = None


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
