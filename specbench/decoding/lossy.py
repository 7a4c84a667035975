"""Verification rules that give up the target's distribution: fuzzy acceptance, and its random control."""

import math
import warnings
from typing import Annotated, Literal, cast

import torch
from pydantic import Field

from specbench.decoding.divergences import DIVERGENCES, MAX_JS
from specbench.decoding.proposal import FOREIGN, DenseProbs, Proposal, Verdict, at_tokens
from specbench.decoding.sampling import Distributions
from specbench.decoding.verification import Rule, rule

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
) -> Rule:
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
    measure = DIVERGENCES[divergence]
    inclusive = divergence == "js_reference"

    def fuzzy(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
        num_drafted = proposal.num_drafted
        if num_drafted == 0:
            return Verdict(0, target.draw(0, generator))
        draft = cast(DenseProbs, proposal.probs)
        if divergence_on == "raw":
            target_probs, draft_probs = target.raw_probs[:num_drafted], draft.raw_probs
        else:
            target_probs, draft_probs = target.probs[:num_drafted], draft.probs
        is_whole = isinstance(draft, Distributions)
        values = measure(*((target_probs, draft_probs) if is_whole else with_foreign(target_probs, draft_probs)))
        token_ids = proposal.on(values.device)
        close = (values <= threshold if inclusive else values < threshold) & (token_ids != FOREIGN)
        place, _ = proposal.standing(close)
        # The recovered token is drawn from p itself, not from a residual; so is the bonus token.
        (num_accepted,), (next_token,) = proposal.read(place, target.draw_at(place, generator))
        target_prob, draft_prob = (at_tokens(probs, token_ids) for probs in (target_probs, draft_probs))
        return Verdict(num_accepted, next_token, target_prob, draft_prob, divergence=values)

    fuzzy.compares_processed = divergence_on == "processed"  # type: ignore[attr-defined]
    return fuzzy


def with_foreign(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both with one more column: what a drafter gave to what is no token of the target, and 0."""
    foreign = 1 - draft_probs.sum(dim=-1, keepdim=True)
    nothing = torch.zeros_like(foreign)
    foreign = torch.where(foreign < ROUNDING, nothing, foreign)
    return torch.cat([target_probs, nothing], dim=-1), torch.cat([draft_probs, foreign], dim=-1)


@rule("random_accept", lossless=False, requires=frozenset())
def random_accept_rule(
    *, probability: Annotated[float, Field(ge=0, le=1, description="Chance of every draft token to stand.")]
) -> Rule:
    """Accept every draft token with one fixed probability; on a rejection draw from p. The control of arXiv:2502.20704,
    App. E: what is left of a fuzzy rule when it does not look at the models."""

    def random_accept(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
        token_ids = proposal.on(target.logits.device)
        uniform = torch.rand(len(token_ids), generator=generator, device=target.logits.device)
        place, _ = proposal.standing((uniform < probability) & (token_ids != FOREIGN))
        (num_accepted,), (next_token,) = proposal.read(place, target.draw_at(place, generator))
        rates = [probability * (token != FOREIGN) for token in proposal.token_ids]
        return Verdict(num_accepted, next_token, overlap=rates)

    return random_accept
