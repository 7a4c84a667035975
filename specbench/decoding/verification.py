"""Verification rules: which draft tokens stand, and which token comes after them.

A rule is a function (proposal, target, generator) → Verdict, where `target` holds the target distributions of the draft
positions and of the one after them: num_drafted + 1 rows. Factories carry `lossless` and what a drafter must provide.
"""

from collections.abc import Callable
from typing import cast

import torch

from specbench.decoding.proposal import Column, DraftProbs, KnownProbs, Proposal, Verdict, at_tokens, is_certain
from specbench.decoding.sampling import Distributions, draw, draw_rows
from specbench.registry import RULES, Factory

Rule = Callable[[Proposal, Distributions, torch.Generator], Verdict]


def rule(name: str, *, lossless: bool, requires: frozenset[str]) -> Callable[[Factory], Factory]:
    """Register a rule factory with what the composition check needs to know."""

    def add(factory: Factory) -> Factory:
        factory.lossless = lossless  # type: ignore[attr-defined]
        factory.requires = requires  # type: ignore[attr-defined]
        return RULES.register(name)(factory)

    return add


@rule("rejection", lossless=True, requires=frozenset({"probs"}))
def rejection_rule() -> Rule:
    """A draft token x stands with probability min(1, p(x)/q(x)), where p is the target and q the drafter; after a
    rejection the next token is drawn from norm(max(p − q, 0)) (arXiv:2211.17192, Alg. 1)."""
    return rejection


def rejection(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
    """The rejection rule; an empty proposal leaves only the next token to draw."""
    if proposal.num_drafted == 0:
        attempted = _attempted(proposal, [], target) if proposal.ended else None
        return Verdict(0, target.draw(0, generator), attempted=attempted)
    if target.sampling.greedy:
        return _greedy_rejection(proposal, target)
    assert proposal.probs is not None
    token_ids = proposal.on(target.probs.device)
    judged_probs = target.probs[: len(token_ids)]
    target_prob = at_tokens(judged_probs, token_ids)
    draft_prob = proposal.probs.token_probs(token_ids)
    uniform = torch.rand(len(token_ids), generator=generator, device=judged_probs.device)
    place, are_all = proposal.standing(uniform * draft_prob < target_prob)
    num_accepted, next_token = _next_token(proposal, target, place, are_all, generator)
    overlap = proposal.probs.overlap(judged_probs)
    attempted = _attempted(proposal, overlap, target)
    return Verdict(num_accepted, next_token, target_prob, draft_prob, overlap, attempted=attempted)


def _attempted(proposal: Proposal, overlap: Column, target: Distributions) -> Column:
    """The column `attempted` of a verdict, given its column `overlap`; None where the draft has none."""
    draft = proposal.probs
    if (attempted := getattr(draft, "attempted", None)) is None:
        return None
    if target.sampling.greedy and is_certain(cast(DraftProbs, draft)):  # the end was drawn, or it was not
        return [*cast(list[float], overlap), *[0.0] * proposal.ended]
    column = overlap if isinstance(overlap, torch.Tensor) else target.logits.new_zeros(0, dtype=torch.float32)
    return cast(torch.Tensor, attempted(column, target))


def _next_token(
    proposal: Proposal, target: Distributions, place: torch.Tensor, are_all: torch.Tensor, generator: torch.Generator
) -> tuple[int, int]:
    """How many tokens stand, and the one after them: from the residual at `place`, or from p where all stand."""
    num_drafted = proposal.num_drafted
    probs = target.probs.index_select(0, place)[0]
    if (recover := getattr(proposal.probs, "recover", None)) is not None:  # drawn from probabilities met on the way
        (num_accepted,), (all_stand,) = proposal.read(place, are_all)
        return num_accepted, draw(probs, generator) if all_stand else recover(num_accepted, probs, generator)
    rest = cast(KnownProbs, proposal.probs).rest(place.clamp_max(num_drafted - 1), probs)
    next_token = draw_rows(torch.where(are_all, probs, rest)[None], generator)
    (num_accepted,), (token,) = proposal.read(place, next_token)
    return num_accepted, token


def _greedy_rejection(proposal: Proposal, target: Distributions) -> Verdict:
    """The limit of temperature 0: p is a point mass, so x stands iff x = argmax p, and Σ min(p, q) = q(argmax p)."""
    (best,) = proposal.read(target.best)
    matches = [token == choice for token, choice in zip(proposal.token_ids, best, strict=False)]
    num_accepted = leading(matches)
    target_prob = [float(match) for match in matches]
    draft = proposal.probs
    if draft is None:  # a drafter that knows no probabilities where none are needed
        return Verdict(num_accepted, best[num_accepted], target_prob)
    if is_certain(draft):
        attempted = _attempted(proposal, target_prob, target)
        certain = [1.0] * len(matches)
        return Verdict(num_accepted, best[num_accepted], target_prob, certain, target_prob, attempted=attempted)
    token_ids = proposal.on(target.logits.device)
    overlap = draft.token_probs(target.best[: len(token_ids)])
    attempted = _attempted(proposal, overlap, target)
    draft_prob = draft.token_probs(token_ids)
    return Verdict(num_accepted, best[num_accepted], target_prob, draft_prob, overlap, attempted=attempted)


@rule("exact_match", lossless=True, requires=frozenset())
def exact_match_rule() -> Rule:
    """Draw the target's own token at every position; draft tokens stand while they are the same (arXiv:2502.05202,
    Alg. 2). As lossless as drawing from the target, whatever was drafted; accepts x with probability p(x)."""
    return exact_match


def exact_match(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
    (own,) = proposal.read(target.draw_all(generator))
    matches = [token == choice for token, choice in zip(proposal.token_ids, own, strict=False)]
    num_accepted = leading(matches)
    if not matches:
        return Verdict(0, own[0])
    if target.sampling.greedy:
        target_prob: Column = [float(match) for match in matches]
    else:
        token_ids = proposal.on(target.probs.device)
        target_prob = at_tokens(target.probs[: len(token_ids)], token_ids)
    return Verdict(num_accepted, own[num_accepted], target_prob, overlap=target_prob)


def leading(flags: list[bool]) -> int:
    """How many are true before the first that is not."""
    return flags.index(False) if False in flags else len(flags)
