from typing import Annotated, Any

from specbench.plugin import DRAFTERS, Drafter, Option, PointMass, Proposal


@DRAFTERS.declare(provides={"probs"})
class Repeat(Drafter):
    """Proposes the last token again."""

    def __init__(self, models: Any, sampling: Any, *, times: Annotated[int, Option(ge=1)] = 3) -> None:
        self.times = times

    def prefill(self, prompt_ids: list[int]) -> None:
        """Reads a new prompt before the clock of decoding starts."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: Any) -> Proposal:
        token_ids = ids[-1:] * min(self.times, num_draft_tokens)
        return Proposal(token_ids, PointMass(token_ids)) if token_ids else Proposal()
