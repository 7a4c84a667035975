"""A verification rule that accepts what the target finds likely enough."""

from typing import Annotated, Any

from specbench.plugin import RULES, Distributions, Option, Proposal, Verification, VerificationRule, at_tokens


class AtLeast(VerificationRule):
    def __init__(self, probability: float) -> None:
        self.probability = probability

    def __call__(self, proposal: Proposal, target: Distributions, generator: Any) -> Verification:
        """Accepts draft tokens up to the first unlikely one, and draws the token after them from the target."""
        token_ids = proposal.on(target.logits.device)
        probs = at_tokens(target.raw_probs[: len(token_ids)], token_ids)
        place, _ = proposal.accepted_prefix(probs >= self.probability)
        (num_accepted,), (next_token,) = proposal.read(place, target.draw_at(place, generator))
        return Verification(num_accepted, next_token, target_prob=probs)


@RULES.declare(lossless=False)
def at_least(*, probability: Annotated[float, Option(ge=0, le=1, description="Of the untruncated target.")]) -> AtLeast:
    """A draft token is accepted if the target gives it at least this probability."""
    return AtLeast(probability)
