"""A claim: the speed-up and the acceptance that somebody published, and what they imply.

A step of speculative decoding emits τ tokens and takes R times as long as a token of AR, so that the speed-up is
S = τ ÷ R. R = k·c + v + rest, in tokens of AR: draft passes, verification, and all that is between passes.

Publications count τ in several ways. Here a step counts the target's own token (the bonus token), and the token of the
prefill belongs to no step; `own_length` brings τ to this.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from specbench.core.errors import ConfigError
from specbench.specs import yaml_files
from specbench.specs.catalogue import is_path, unknown_name
from specbench.specs.components import Name, Spec, Text, build
from specbench.statistics.bootstrap import Estimate

PUBLIC = Path(__file__).parent / "public"

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class ClaimSpec(Spec):
    """A published speed-up. What the publication does not tell is left out, never guessed."""

    name: Name
    """Name of the claim; that of its file."""
    title: Text
    """What is claimed, in a line."""
    source: Text
    """Where it stands, such as arXiv:2503.01840, table 1."""
    url: Annotated[str, Field(pattern=r"^https?://\S+$")]
    """Address of the source."""
    note: Text | None = None
    """What else the source says, or what to keep in mind."""
    method: Text
    """The method, in the source's words."""
    target: Text | None = None
    """The target model."""
    drafter: Text | None = None
    """The draft model or head."""
    hardware: Text | None = None
    """The machine."""
    engine: Text | None = None
    """The engine of the method."""
    baseline: Literal["same engine", "other engine"] | None = None
    """Whether AR ran in the method's engine. Absent: not told."""
    dtype: Text | None = None
    """Precision of the weights."""
    prompts: Text | None = None
    """The prompts."""
    sampling: Text | None = None
    """Greedy, or a temperature."""
    batch: Count | None = None
    """Requests at once."""
    speedup: Positive | None = None
    """The speed-up over AR; by default tokens_per_second ÷ tokens_per_second_ar."""
    speedup_interval: tuple[Positive, Positive] | None = None
    """Its lower and upper end."""
    speedup_of: Literal["decoding", "whole call"] | None = None
    """Whether the prefill is part of the times. Absent: not told, and compared with that of decoding."""
    tokens_per_second: Positive | None = None
    """Tokens per second of the method."""
    tokens_per_second_ar: Positive | None = None
    """Tokens per second of AR."""
    mean_acceptance_length: Positive | None = None
    """τ as the source counts it: tokens per verification pass."""
    counts_bonus: bool | None = None
    """Whether τ counts the target's own token of each step. Absent: not told, and taken as counted."""
    counts_prefill: Literal["none", "token", "pass"] | None = None
    """What τ counts of the prefill. none: nothing; token: its token, as in new tokens ÷ verification passes; pass: its
    token and its pass, as in new tokens ÷ target passes. Absent: not told, and taken as none."""
    new_tokens: Annotated[float, Field(gt=1)] | None = None
    """Mean number of new tokens of an answer, by which the prefill is taken out of τ."""
    acceptance_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    """α, from which τ follows if mean_acceptance_length is absent."""
    acceptance_rate_of: Literal["verified", "drafted"] | None = None
    """Accepted ÷ verified tokens (those after the first rejection do not count), or accepted ÷ drafted tokens."""
    num_draft_tokens: Count | None = None
    """Draft tokens of a step; of a tree, its nodes."""
    full_drafts: bool | None = None
    """Whether each step drafts num_draft_tokens. Absent: not told, and assumed. false: τ does not follow from α."""
    draft_passes: NotNegative | None = None
    """Draft passes of a step; by default num_draft_tokens."""
    draft_cost: NotNegative | None = None
    """c: time of a draft pass ÷ time of a token of AR."""
    verification_cost: Positive | None = None
    """v: time of the pass that verifies a draft ÷ time of a token of AR."""
    series: Name | None = None
    """Claims that differ in num_draft_tokens only have the same series."""

    def check(self) -> None:
        of_speeds = self._ratio_of_speeds()
        if self.speedup_interval is not None:
            low, high = self.speedup_interval
            if self.speedup is None or not low <= self.speedup <= high:
                raise ConfigError(
                    f"speedup_interval = [{low:g}, {high:g}]: does not hold speedup = {self.speedup}: write the lower "
                    "end, then the upper end"
                )
        if self.speedup is not None and of_speeds is not None and abs(of_speeds / self.speedup - 1) > ROUNDED:
            raise ConfigError(
                f"speedup = {self.speedup:g}: tokens_per_second ÷ tokens_per_second_ar is {of_speeds:.3g}: correct one "
                "of them, or leave out the speeds if they are of other prompts"
            )
        if (self.acceptance_rate is None) != (self.acceptance_rate_of is None):
            missing = "acceptance_rate" if self.acceptance_rate is None else "acceptance_rate_of"
            raise ConfigError(f"the key '{missing}' is missing: add it, or remove the other one of the two")
        self._check_length()

    def _check_length(self) -> None:
        length = self.mean_acceptance_length
        if length is None:
            for key in ("counts_bonus", "counts_prefill"):
                if getattr(self, key) is not None:
                    raise ConfigError(f"{key}: says how mean_acceptance_length is counted, which is absent: add it")
            return
        has_prefill = self.counts_prefill in ("token", "pass")
        if self.counts_bonus is False and has_prefill:
            raise ConfigError(
                f"counts_prefill = {self.counts_prefill}: τ without the target's own tokens does not have that of the "
                "prefill: remove the key, or write counts_bonus: true"
            )
        if self.counts_bonus is not False and length < 1:
            raise ConfigError(
                f"mean_acceptance_length = {length:g}: a step emits at least 1 token with the target's own: write "
                "counts_bonus: false if it is not counted"
            )
        if self.counts_prefill == "pass" and self.new_tokens is not None and self.new_tokens <= length:
            raise ConfigError(
                f"new_tokens = {self.new_tokens:g}: τ = {length:g} with the prefill's pass needs more tokens: correct "
                "one of them"
            )

    def _ratio_of_speeds(self) -> float | None:
        if self.tokens_per_second is None or self.tokens_per_second_ar is None:
            return None
        return self.tokens_per_second / self.tokens_per_second_ar

    def own_speedup(self) -> Estimate:
        """Returns the speed-up, with its interval if the source has one; empty if it is not told."""
        value = self.speedup or self._ratio_of_speeds()
        low, high = self.speedup_interval or (None, None)
        return Estimate(value=value, low=low, high=high)

    def passes(self) -> float | None:
        """Returns the draft passes of a step."""
        return self.num_draft_tokens if self.draft_passes is None else self.draft_passes

    def told_costs(self) -> float | None:
        """Returns k·c + v; None if one of them is not told."""
        passes = self.passes()
        if self.draft_cost is None or self.verification_cost is None or passes is None:
            return None
        return passes * self.draft_cost + self.verification_cost


ROUNDED = 0.02  # relative difference of printed figures that are one number
SPEEDUP_KEYS = "speedup, or tokens_per_second and tokens_per_second_ar"
LENGTH_KEYS = "mean_acceptance_length, or acceptance_rate with num_draft_tokens"


def own_length(claim: ClaimSpec) -> tuple[float | None, list[str]]:
    """Returns τ as it is counted here, and what was done or assumed for it, a line each. Without τ, the last line says
    why there is none.

    With n new tokens per answer and L as printed: a printed τ without the target's own tokens is one too small; n ÷
    passes has a token too many, so that τ = L·(n − 1) ÷ n; and n ÷ (passes + 1) also has a pass too many, so that
    τ = (n − 1) ÷ (n ÷ L − 1).
    """
    length, tokens, prefill = claim.mean_acceptance_length, claim.new_tokens, claim.counts_prefill
    if length is None:
        return _length_of_rate(claim)
    if claim.counts_bonus is False:
        return length + 1, [f"τ = {length:g} + 1: the source does not count the target's own tokens"]
    notes = [] if claim.counts_bonus else ["not told whether τ counts the target's own tokens: taken as counted"]
    if prefill in (None, "none"):
        return length, notes
    if tokens is None:
        missing = "new_tokens, by which to take it out, is missing, so that τ is a little wrong"
        return length, [*notes, f"τ = {length:g} counts the prefill's {prefill}; {missing}"]
    if prefill == "token":
        formula = f"{length:g} · ({tokens:g} − 1) ÷ {tokens:g}: without the prefill's token"
        return length * (tokens - 1) / tokens, [*notes, f"τ = {formula}"]
    formula = f"({tokens:g} − 1) ÷ ({tokens:g} ÷ {length:g} − 1): without the prefill's token and pass"
    return (tokens - 1) / (tokens / length - 1), [*notes, f"τ = {formula}"]


def _length_of_rate(claim: ClaimSpec) -> tuple[float | None, list[str]]:
    rate, drafts = claim.acceptance_rate, claim.num_draft_tokens
    if rate is not None and claim.full_drafts is False:
        return None, ["missing: mean_acceptance_length, which does not follow from α, since drafts end early"]
    if rate is None or drafts is None:
        return None, [f"missing: {LENGTH_KEYS}"]
    assumed = "" if claim.full_drafts else ", if every step drafts so many"
    if claim.acceptance_rate_of == "drafted":
        return 1 + drafts * rate, [f"τ = 1 + {drafts} · {rate:g}{assumed}"]
    length = sum(rate**place for place in range(drafts + 1))
    return length, [f"τ = Σ {rate:g}^i for i from 0 to {drafts}{assumed}, and if α is the same at every position"]


MARGIN, MARGIN_UNKNOWN = 1.05, 1.1  # passes over several tokens were measured at 0.94 of one over one token
Verdict = Literal["plausible", "implausible", "undecided"]


def highest_speedup(length: float, verification_cost: float | None) -> float:
    """Returns the speed-up above which a figure is implausible at batch 1, over AR of the same engine: no step takes
    less time than its verification pass, and hardly any such pass less than one over one token."""
    if verification_cost is None:
        return MARGIN_UNKNOWN * length
    return MARGIN * length / min(1.0, verification_cost)


class Reading(BaseModel):
    """What a claim implies. `mean_acceptance_length`: τ as it is counted here, after `conversions`. `step_cost`: R.
    `costs`: draft, verification and rest, which sum to R; null unless the claim tells them. `highest_speedup`: the
    bound of the verdict. `reason`: of the verdict; if undecided, what is missing."""

    name: str
    title: str
    source: str
    url: str
    speedup: Estimate
    speedup_of: str | None
    mean_acceptance_length: float | None
    conversions: list[str]
    step_cost: float | None
    costs: dict[str, float] | None
    highest_speedup: float | None
    verdict: Verdict
    reason: str


COSTS = ("draft", "verification", "rest")


def read_claim(claim: ClaimSpec) -> Reading:
    """Returns what a claim implies."""
    speedup, (length, notes) = claim.own_speedup(), own_length(claim)
    step_cost = length / speedup.value if length is not None and speedup.value is not None else None
    told, verifying, costs = claim.told_costs(), claim.verification_cost, None
    if told is not None and verifying is not None and step_cost is not None and told <= step_cost:
        costs = dict(zip(COSTS, (told - verifying, verifying, step_cost - told), strict=True))
    most = None if length is None else highest_speedup(length, claim.verification_cost)
    verdict, reason = _verdict(claim, speedup, length, notes)
    return Reading(
        name=claim.name, title=claim.title, source=claim.source, url=claim.url, speedup=speedup,
        speedup_of=claim.speedup_of, mean_acceptance_length=length, conversions=[] if length is None else notes,
        step_cost=step_cost, costs=costs, highest_speedup=most, verdict=verdict, reason=reason,
    )  # fmt: skip


def _verdict(claim: ClaimSpec, speedup: Estimate, length: float | None, notes: Sequence[str]) -> tuple[Verdict, str]:
    drafts = claim.num_draft_tokens
    if length is not None and drafts is not None and length > (1 + ROUNDED) * (drafts + 1):
        return "implausible", f"τ = {length:.2f} exceeds {drafts + 1}, the {drafts} draft tokens of a step and one more"
    missing = [f"missing: {SPEEDUP_KEYS}"] * (speedup.value is None) + [*notes[-1:]] * (length is None)
    missing += [f"missing: {key}" for key in ("batch", "baseline") if getattr(claim, key) is None]
    if length is None or speedup.value is None or missing:
        return "undecided", "; ".join(missing)
    if claim.batch != 1 or claim.baseline != "same engine":
        return "undecided", "the bound is for batch 1 and AR of the same engine"
    lowest = speedup.value if speedup.low is None else speedup.low
    most, told = highest_speedup(length, claim.verification_cost), claim.told_costs()
    if claim.verification_cost is None:
        bound = f"{MARGIN_UNKNOWN:g} · τ = {most:.2f}"
    else:
        bound = f"{MARGIN:g} · τ ÷ min(1, v) = {most:.2f}"
    if lowest > most:
        return "implausible", f"{lowest:.2f} exceeds {bound}, as if a step took less time than a token of AR"
    if told is not None and lowest > MARGIN * length / told:
        bound = f"{MARGIN:g} · τ ÷ (k·c + v) = {MARGIN * length / told:.2f}"
        return "implausible", f"{lowest:.2f} exceeds {bound}, the most that the costs told allow"
    return "plausible", f"{lowest:.2f} is within {bound}"


@cache
def public_claims() -> dict[str, ClaimSpec]:
    """Returns the claims that the package has, by name."""
    return {path.stem: load_claim(str(path)) for path in sorted(PUBLIC.glob("*.yaml"))}


def load_claim(name_or_path: str) -> ClaimSpec:
    """Returns a claim of the package by name, or the one in a YAML file. Raises ConfigError that names the file, the
    key, the value and the remedy."""
    if is_path(name_or_path):
        return build(ClaimSpec, yaml_files.read(Path(name_or_path)), f"{name_or_path}: ")
    names = [path.stem for path in PUBLIC.glob("*.yaml")]
    if name_or_path not in names:
        raise unknown_name("claim", name_or_path, names, "`specbench explain --list` shows them")
    return public_claims()[name_or_path]
