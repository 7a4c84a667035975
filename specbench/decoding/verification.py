"""Verification rules: they decide which draft tokens are accepted, and draw the token that comes after them.

A rule maps (proposal, target distributions, generator) to a Verification. The target distributions are those of the
draft positions and of the next one: num_drafted + 1 rows. Factories carry `lossless`, and what a drafter must provide.
"""

import math
import warnings
from collections.abc import Callable
from typing import Annotated, Literal, cast

import torch
from pydantic import Field

from specbench.core.registry import RULES, Factory
from specbench.decoding.proposal import (
    OUT_OF_VOCABULARY,
    Column,
    Proposal,
    Verification,
    at_tokens,
)
from specbench.decoding.sampling import DenseProbs, Distributions, draw, draw_rows


class VerificationRule:
    """Decides which draft tokens are accepted and draws the token behind them."""

    compares_processed = False  # whether it compares both distributions after temperature and truncation

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        """Judges a proposal of n tokens, given the n + 1 target distributions of its positions and the next one."""
        raise NotImplementedError


def rule(name: str, *, lossless: bool, requires: frozenset[str]) -> Callable[[Factory], Factory]:
    """Register a rule factory with what the composition check needs to know."""

    def add(factory: Factory) -> Factory:
        factory.lossless = lossless  # type: ignore[attr-defined]
        factory.requires = requires  # type: ignore[attr-defined]
        return RULES.register(name)(factory)

    return add


@rule("rejection", lossless=True, requires=frozenset({"probs"}))
def rejection_rule() -> VerificationRule:
    """A draft token x stands with probability min(1, p(x)/q(x)), where p is the target and q the drafter; after a
    rejection the next token is drawn from norm(max(p − q, 0)) (arXiv:2211.17192, Alg. 1)."""
    return rejection


class Rejection(VerificationRule):
    """The rejection rule; an empty proposal leaves only the next token to draw."""

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        if proposal.num_drafted == 0:
            attempted = _attempted(proposal, [], target) if proposal.ended else None
            return Verification(0, target.draw(0, generator), attempted=attempted)
        if target.sampling.greedy:
            return _greedy_rejection(proposal, target)
        assert proposal.probs is not None
        token_ids = proposal.on(target.probs.device)
        judged_probs = target.probs[: len(token_ids)]
        target_prob = at_tokens(judged_probs, token_ids)
        draft_prob = proposal.probs.token_probs(token_ids)
        uniform = torch.rand(len(token_ids), generator=generator, device=judged_probs.device)
        place, are_all = proposal.accepted_prefix(uniform * draft_prob < target_prob)
        num_accepted, next_token = _next_token(proposal, target, place, are_all, generator)
        overlap = proposal.probs.overlap(judged_probs)
        attempted = _attempted(proposal, overlap, target)
        return Verification(num_accepted, next_token, target_prob, draft_prob, overlap, attempted=attempted)


rejection = Rejection()


def _attempted(proposal: Proposal, overlap: Column, target: Distributions) -> Column:
    """Returns the column `attempted` of a verdict, given its column `overlap`; None for a draft that has none."""
    draft = proposal.probs
    if draft is None:
        return None
    column = overlap if isinstance(overlap, torch.Tensor) else target.logits.new_zeros(0, dtype=torch.float32)
    if not (target.sampling.greedy and draft.is_one_hot):
        return draft.attempted(column, target)
    if not draft.withholds_end:
        return None
    return [*cast(list[float], overlap), *[0.0] * proposal.ended]  # the end was drawn, or it was not


def _next_token(
    proposal: Proposal, target: Distributions, place: torch.Tensor, are_all: torch.Tensor, generator: torch.Generator
) -> tuple[int, int]:
    """How many tokens stand, and the one after them: from the residual at `place`, or from p where all stand."""
    num_drafted = proposal.num_drafted
    probs = target.probs.index_select(0, place)[0]
    draft = proposal.probs
    assert draft is not None
    if draft.residual_is_sampled:
        (num_accepted,), (all_stand,) = proposal.read(place, are_all)
        return num_accepted, draw(probs, generator) if all_stand else draft.sample_residual(
            num_accepted, probs, generator
        )
    rest = draft.residual(place.clamp_max(num_drafted - 1), probs)
    next_token = draw_rows(torch.where(are_all, probs, rest)[None], generator)
    (num_accepted,), (token,) = proposal.read(place, next_token)
    return num_accepted, token


def _greedy_rejection(proposal: Proposal, target: Distributions) -> Verification:
    """The limit of temperature 0: p is a point mass, so x stands iff x = argmax p, and Σ min(p, q) = q(argmax p)."""
    (best,) = proposal.read(target.best)
    matches = [token == choice for token, choice in zip(proposal.token_ids, best, strict=False)]
    num_accepted = leading(matches)
    target_prob = [float(match) for match in matches]
    draft = proposal.probs
    if draft is None:  # a drafter that knows no probabilities where none are needed
        return Verification(num_accepted, best[num_accepted], target_prob)
    if draft.is_one_hot:
        attempted = _attempted(proposal, target_prob, target)
        certain = [1.0] * len(matches)
        return Verification(num_accepted, best[num_accepted], target_prob, certain, target_prob, attempted=attempted)
    token_ids = proposal.on(target.logits.device)
    overlap = draft.token_probs(target.best[: len(token_ids)])
    attempted = _attempted(proposal, overlap, target)
    draft_prob = draft.token_probs(token_ids)
    return Verification(num_accepted, best[num_accepted], target_prob, draft_prob, overlap, attempted=attempted)


@rule("exact_match", lossless=True, requires=frozenset())
def exact_match_rule() -> VerificationRule:
    """Draw the target's own token at every position; draft tokens stand while they are the same (arXiv:2502.05202,
    Alg. 2). As lossless as drawing from the target, whatever was drafted; accepts x with probability p(x)."""
    return exact_match


class ExactMatch(VerificationRule):
    """The exact-match rule."""

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        (own,) = proposal.read(target.draw_all(generator))
        matches = [token == choice for token, choice in zip(proposal.token_ids, own, strict=False)]
        num_accepted = leading(matches)
        if not matches:
            return Verification(0, own[0])
        if target.sampling.greedy:
            target_prob: Column = [float(match) for match in matches]
        else:
            token_ids = proposal.on(target.probs.device)
            target_prob = at_tokens(target.probs[: len(token_ids)], token_ids)
        return Verification(num_accepted, own[num_accepted], target_prob, overlap=target_prob)


exact_match = ExactMatch()


def leading(flags: list[bool]) -> int:
    """How many are true before the first that is not."""
    return flags.index(False) if False in flags else len(flags)


Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
TOP_K = 50
MAX_JS = math.log(2.0)


def kl(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """KL(target‖draft) = Σ p (ln p − ln q). A probability that float32 cannot hold counts as the smallest that it can,
    so that the divergence stays finite (≤ 88) where the draft excludes what the target allows."""
    draft_probs = draft_probs.clamp_min(torch.finfo(draft_probs.dtype).tiny)
    terms: torch.Tensor = torch.xlogy(target_probs, target_probs) - torch.xlogy(target_probs, draft_probs)
    return terms.sum(-1)


def reverse_kl(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """KL(draft‖target)."""
    return kl(draft_probs, target_probs)


def js(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Jensen–Shannon: ½KL(p‖m) + ½KL(q‖m), m = (p + q)/2; at most ln 2."""
    middle = (target_probs + draft_probs) / 2
    return ((kl(target_probs, middle) + kl(draft_probs, middle)) / 2).clamp_min(0.0)


def js_reference(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """The published code's "js_div": ½KL(m‖p) + ½KL(m‖q), m = (p + q)/2; unbounded."""
    middle = (target_probs + draft_probs) / 2
    return (kl(middle, target_probs) + kl(middle, draft_probs)) / 2


def tv(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Total variation: ½ Σ |p − q|."""
    return (target_probs - draft_probs).abs().sum(-1) / 2


def top_k(divergence: Divergence) -> Divergence:
    """The divergence over the target's 50 most probable tokens and one bucket for all others."""

    def over_buckets(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        best = target_probs.topk(min(TOP_K, target_probs.shape[-1]), dim=-1).indices
        return divergence(_with_rest(target_probs, best), _with_rest(draft_probs, best))

    return over_buckets


def _with_rest(probs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    kept = probs.gather(-1, chosen)
    rest = probs.scatter(-1, chosen, 0.0).sum(-1, keepdim=True)
    return torch.cat([kept, rest], dim=-1)


DIVERGENCES: dict[str, Divergence] = {
    "js": js,
    "kl": kl,
    "reverse_kl": reverse_kl,
    "tv": tv,
    "js_reference": js_reference,
    "top_k_js": top_k(js),
    "top_k_kl": top_k(kl),
    "top_k_reverse_kl": top_k(reverse_kl),
    "top_k_tv": top_k(tv),
}


ROUNDING = 1e-4  # of a sum of float32 probabilities
DivergenceName = Literal[
    "js", "kl", "reverse_kl", "tv", "js_reference", "top_k_js", "top_k_kl", "top_k_reverse_kl", "top_k_tv"
]


DIVERGENCE = (
    "How far apart the two distributions are, in nats (tv: 0 to 1): kl is KL(target‖draft), reverse_kl is "
    "KL(draft‖target), js_reference is the formula of the published code; top_k_… look at the target's 50 most "
    "probable tokens and one bucket for all others."
)
THRESHOLD = (
    "A draft token stands while the divergence at its position is below it (js_reference: at it too, as the published "
    "code does). 0 accepts next to nothing, .inf everything."
)
DIVERGENCE_ON = (
    "raw compares the softmaxes of both models at temperature 1, untruncated, as the published code does; processed "
    "compares what tokens are drawn from, and needs both temperatures above 0."
)


@rule("fuzzy", lossless=False, requires=frozenset({"probs", "raw_probs"}))
def fuzzy_rule(
    *,
    divergence: Annotated[DivergenceName, Field(description=DIVERGENCE)],
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=True, description=THRESHOLD)],
    divergence_on: Annotated[Literal["raw", "processed"], Field(description=DIVERGENCE_ON)] = "raw",
) -> VerificationRule:
    """Accept while the divergence of target and draft at the position is below the threshold; on a rejection draw from
    the target (arXiv:2502.20704, §4).

    A threshold means nothing without the name of its divergence. The paper's (0.3, 0.4 and 0.7, one for each of its
    model pairs) belong to `reverse_kl`, by a later word of its first author; `js` never exceeds ln 2 = 0.693.
    """
    if math.isnan(threshold):
        raise ValueError("threshold is not a number")
    if divergence in ("js", "top_k_js") and MAX_JS < threshold < math.inf:
        warnings.warn(
            f"{divergence} never exceeds ln 2 = 0.693: threshold {threshold:g} accepts everything", stacklevel=2
        )
    return Fuzzy(DIVERGENCES[divergence], threshold, divergence == "js_reference", divergence_on == "processed")


class Fuzzy(VerificationRule):
    """The fuzzy rule. `inclusive`: a divergence equal to the threshold is accepted."""

    def __init__(self, measure: Divergence, threshold: float, inclusive: bool, compares_processed: bool) -> None:
        self.measure = measure
        self.threshold = threshold
        self.inclusive = inclusive
        self.compares_processed = compares_processed

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        num_drafted = proposal.num_drafted
        if num_drafted == 0:
            return Verification(0, target.draw(0, generator))
        draft = cast(DenseProbs, proposal.probs)
        if self.compares_processed:
            target_probs, draft_probs = target.probs[:num_drafted], draft.probs
        else:
            target_probs, draft_probs = target.raw_probs[:num_drafted], draft.raw_probs
        is_whole = isinstance(draft, Distributions)
        values = self.measure(
            *((target_probs, draft_probs) if is_whole else with_out_of_vocabulary(target_probs, draft_probs))
        )
        token_ids = proposal.on(values.device)
        is_close = values <= self.threshold if self.inclusive else values < self.threshold
        place, _ = proposal.accepted_prefix(is_close & (token_ids != OUT_OF_VOCABULARY))
        # The recovered token is drawn from p itself, not from a residual; so is the bonus token.
        (num_accepted,), (next_token,) = proposal.read(place, target.draw_at(place, generator))
        target_prob, draft_prob = (at_tokens(probs, token_ids) for probs in (target_probs, draft_probs))
        return Verification(num_accepted, next_token, target_prob, draft_prob, divergence=values)


def with_out_of_vocabulary(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both with one more column: what a drafter gave to what is no token of the target, and 0."""
    foreign = 1 - draft_probs.sum(dim=-1, keepdim=True)
    nothing = torch.zeros_like(foreign)
    foreign = torch.where(foreign < ROUNDING, nothing, foreign)
    return torch.cat([target_probs, nothing], dim=-1), torch.cat([draft_probs, foreign], dim=-1)


@rule("random_accept", lossless=False, requires=frozenset())
def random_accept_rule(
    *, probability: Annotated[float, Field(ge=0, le=1, description="Chance of every draft token to stand.")]
) -> VerificationRule:
    """Accept every draft token with one fixed probability; on a rejection draw from p. The control of arXiv:2502.20704,
    App. E: what is left of a fuzzy rule when it does not look at the models."""
    return RandomAccept(probability)


class RandomAccept(VerificationRule):
    """The rule that accepts every draft token with one fixed probability."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        token_ids = proposal.on(target.logits.device)
        uniform = torch.rand(len(token_ids), generator=generator, device=target.logits.device)
        place, _ = proposal.accepted_prefix((uniform < self.probability) & (token_ids != OUT_OF_VOCABULARY))
        (num_accepted,), (next_token,) = proposal.read(place, target.draw_at(place, generator))
        rates = [self.probability * (token != OUT_OF_VOCABULARY) for token in proposal.token_ids]
        return Verification(num_accepted, next_token, overlap=rates)
