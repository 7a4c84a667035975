"""Verification rules: which draft tokens stand, and which token comes after them.

A rule is a function (proposal, target, generator) → Verdict, where `target` holds the target distributions of the draft
positions and of the one after them: num_drafted + 1 rows. Factories carry `lossless` and what a drafter must provide.
"""

from collections.abc import Callable

import torch

from specbench.decoding.proposal import Column, Proposal, Verdict, at_tokens, is_certain
from specbench.decoding.sampling import Distributions
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
        return Verdict(0, target.draw(0, generator))
    if target.sampling.greedy:
        return _greedy_rejection(proposal, target)
    assert proposal.probs is not None
    num_drafted = proposal.num_drafted
    token_ids = torch.tensor(proposal.token_ids, device=target.probs.device)
    judged_probs = target.probs[:num_drafted]
    target_prob = at_tokens(judged_probs, token_ids)
    draft_prob = proposal.probs.token_probs(token_ids)
    uniform = torch.rand(num_drafted, generator=generator, device=judged_probs.device)
    accepts: list[bool] = (uniform * draft_prob < target_prob).tolist()
    num_accepted = leading(accepts)
    if num_accepted == num_drafted:
        next_token = target.draw(num_drafted, generator)
    else:
        next_token = proposal.probs.recover(num_accepted, target.probs[num_accepted], generator)
    return Verdict(num_accepted, next_token, target_prob, draft_prob, proposal.probs.overlap(judged_probs))


def _greedy_rejection(proposal: Proposal, target: Distributions) -> Verdict:
    """The limit of temperature 0: p is a point mass, so x stands iff x = argmax p, and Σ min(p, q) = q(argmax p)."""
    best = target.best
    matches = [token == choice for token, choice in zip(proposal.token_ids, best, strict=False)]
    num_accepted = leading(matches)
    target_prob = [float(match) for match in matches]
    draft = proposal.probs
    if draft is None:  # a drafter that knows no probabilities where none are needed
        return Verdict(num_accepted, best[num_accepted], target_prob)
    if is_certain(draft):
        return Verdict(num_accepted, best[num_accepted], target_prob, [1.0] * len(matches), target_prob)
    draft_prob = draft.token_probs(torch.tensor(proposal.token_ids, device=target.logits.device))
    overlap = draft.token_probs(torch.tensor(best[: len(matches)], device=target.logits.device))
    return Verdict(num_accepted, best[num_accepted], target_prob, draft_prob, overlap)


@rule("exact_match", lossless=True, requires=frozenset())
def exact_match_rule() -> Rule:
    """Draw the target's own token at every position; draft tokens stand while they are the same (arXiv:2502.05202,
    Alg. 2). As lossless as drawing from the target, whatever was drafted; accepts x with probability p(x)."""
    return exact_match


def exact_match(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
    own = target.draw_all(generator)
    matches = [token == choice for token, choice in zip(proposal.token_ids, own, strict=False)]
    num_accepted = leading(matches)
    if not matches:
        return Verdict(0, own[0])
    if target.sampling.greedy:
        target_prob: Column = [float(match) for match in matches]
    else:
        token_ids = torch.tensor(proposal.token_ids, device=target.probs.device)
        target_prob = at_tokens(target.probs[: len(matches)], token_ids)
    return Verdict(num_accepted, own[num_accepted], target_prob, overlap=target_prob)


def leading(flags: list[bool]) -> int:
    """How many are true before the first that is not."""
    return flags.index(False) if False in flags else len(flags)
