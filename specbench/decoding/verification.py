"""Verification rules: which draft tokens stand, and which token comes after them.

A rule is a function (proposal, target, generator) → Verdict, where `target` holds the target distributions of the draft
positions and of the one after them: num_drafted + 1 rows. Factories carry `lossless` and what a drafter must provide.
"""

import math
import warnings
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field

from specbench.decoding.divergences import DIVERGENCES, MAX_JS
from specbench.decoding.proposal import Proposal, Verdict
from specbench.decoding.sampling import Distributions, draw
from specbench.registry import RULES, Factory

Rule = Callable[[Proposal, Distributions, torch.Generator], Verdict]
DivergenceName = Literal[
    "js", "kl", "reverse_kl", "tv", "js_reference", "top_k_js", "top_k_kl", "top_k_reverse_kl", "top_k_tv"
]


def rule(name: str, *, lossless: bool, requires: frozenset[str]) -> Callable[[Factory], Factory]:
    """Register a rule factory with what the composition check needs to know."""

    def add(factory: Factory) -> Factory:
        factory.lossless = lossless  # type: ignore[attr-defined]
        factory.requires = requires  # type: ignore[attr-defined]
        return RULES.register(name)(factory)

    return add


@rule("rejection", lossless=True, requires=frozenset({"probs"}))
def rejection_rule() -> Rule:
    """Accept x with min(1, p(x)/q(x)), recover from norm(max(p − q, 0)) (arXiv:2211.17192, Alg. 1)."""
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
    target_prob = judged_probs.gather(1, token_ids[:, None])[:, 0]
    draft_prob = proposal.probs.token_probs(token_ids)
    uniform = torch.rand(num_drafted, generator=generator, device=judged_probs.device)
    accepts: list[bool] = (uniform * draft_prob < target_prob).tolist()
    num_accepted = leading(accepts)
    if num_accepted == num_drafted:
        next_token = target.draw(num_drafted, generator)
    else:
        next_token = draw(residual(target.probs[num_accepted], proposal.probs.row(num_accepted)), generator)
    return Verdict(num_accepted, next_token, target_prob, draft_prob, proposal.probs.overlap(judged_probs))


def _greedy_rejection(proposal: Proposal, target: Distributions) -> Verdict:
    """The limit of temperature 0: p is a point mass, so x stands iff x = argmax p, and Σ min(p, q) = q(argmax p)."""
    best = target.best
    matches = [token == choice for token, choice in zip(proposal.token_ids, best, strict=False)]
    num_accepted = leading(matches)
    target_prob = [float(match) for match in matches]
    if isinstance(proposal.probs, Distributions) and proposal.probs.sampling.greedy:
        return Verdict(num_accepted, best[num_accepted], target_prob, [1.0] * len(matches), target_prob)
    assert proposal.probs is not None
    draft_prob = proposal.probs.token_probs(torch.tensor(proposal.token_ids, device=target.logits.device))
    overlap = proposal.probs.token_probs(torch.tensor(best[: len(matches)], device=target.logits.device))
    return Verdict(num_accepted, best[num_accepted], target_prob, draft_prob, overlap)


def residual(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """max(p − q, 0), unnormalised, [vocab]; p itself where rounding leaves nothing."""
    rest = (target_probs - draft_probs).clamp_min(0.0)
    return rest if bool(rest.any()) else target_probs


def leading(flags: list[bool]) -> int:
    """How many are true before the first that is not."""
    return flags.index(False) if False in flags else len(flags)


@rule("fuzzy", lossless=False, requires=frozenset({"probs", "raw_probs"}))
def fuzzy_rule(
    *,
    divergence: DivergenceName,
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=True)],
    divergence_on: Literal["raw", "processed"] = "raw",
) -> Rule:
    """Accept while the divergence of target and draft at the position is below the threshold (arXiv:2502.20704, §4).

    `divergence_on: raw` compares the softmaxes at temperature 1, untruncated (as the published code does); `processed`
    compares what tokens are drawn from. The paper reports its results with thresholds 0.3 to 0.7: divergences.py says
    to which divergence they belong. `js_reference` accepts at the threshold too (≤), as its code does; all others
    below it (<).
    """
    if math.isnan(threshold):
        raise ValueError("threshold is not a number")
    if divergence in ("js", "top_k_js") and MAX_JS < threshold < math.inf:
        warnings.warn(
            f"{divergence} never exceeds ln 2 = 0.693: threshold {threshold:g} accepts everything", stacklevel=2
        )
    measure = DIVERGENCES[divergence]
    inclusive = divergence == "js_reference"

    def fuzzy(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
        num_drafted = proposal.num_drafted
        if num_drafted == 0:
            return Verdict(0, target.draw(0, generator))
        draft = proposal.probs
        assert isinstance(draft, Distributions)
        if divergence_on == "raw":
            target_probs, draft_probs = target.raw_probs[:num_drafted], draft.raw_probs
        else:
            target_probs, draft_probs = target.probs[:num_drafted], draft.probs
        values = measure(target_probs, draft_probs)
        close = values <= threshold if inclusive else values < threshold
        num_accepted = leading(close.tolist())
        # The recovered token is drawn from p itself, not from a residual; so is the bonus token.
        next_token = target.draw(num_accepted, generator)
        token_ids = torch.tensor(proposal.token_ids, device=values.device)[:, None]
        target_prob, draft_prob = (probs.gather(1, token_ids)[:, 0] for probs in (target_probs, draft_probs))
        return Verdict(num_accepted, next_token, target_prob, draft_prob, divergence=values)

    fuzzy.compares_processed = divergence_on == "processed"  # type: ignore[attr-defined]
    return fuzzy
