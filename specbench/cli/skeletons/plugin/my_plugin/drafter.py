"""A drafter that proposes the last token again."""

from typing import Annotated, Any

from pydantic import Field

from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import PointMass, Proposal


class Repeat(Drafter):
    def __init__(self, times: int) -> None:
        self.times = times

    def prefill(self, prompt_ids: list[int]) -> None:
        """Reads a new prompt before the clock of decoding starts."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: Any) -> Proposal:
        """Returns at most `num_draft_tokens` tokens that may follow `ids`, the prompt and all tokens so far."""
        token_ids = ids[-1:] * min(self.times, num_draft_tokens)
        return Proposal(token_ids, PointMass(token_ids)) if token_ids else Proposal()


@DRAFTERS.declare(provides={"probs"})
def repeat(models: Any, sampling: Any, *, times: Annotated[int, Field(ge=1, description="Repetitions.")] = 3) -> Repeat:
    """Proposes the last token again."""
    return Repeat(times)
