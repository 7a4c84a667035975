"""The drafter without drafts: its empty proposals make the decode loop autoregressive."""

from typing import Any

import torch

from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Sampling

EMPTY = Proposal()


class NoDrafter(Drafter):
    """A drafter whose proposals are empty."""

    def prefill(self, prompt_ids: list[int]) -> None:
        pass

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        return EMPTY


@DRAFTERS.register("none", provides={"probs"})
def no_drafter(models: Any, sampling: Sampling) -> NoDrafter:
    """Drafts nothing: every step is one target pass over one token."""
    return NoDrafter()
