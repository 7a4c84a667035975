"""No drafter: the empty proposal, which makes the loop autoregressive decoding."""

from typing import Any

import torch

from specbench.decoding.drafters import Drafter, drafter
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Sampling

EMPTY = Proposal()


class NoDrafter(Drafter):
    """Proposes nothing."""

    def prefill(self, prompt_ids: list[int]) -> None:
        pass

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        return EMPTY


@drafter("none", provides=frozenset({"probs"}), needs_model=False)
def no_drafter(models: Any, sampling: Sampling) -> NoDrafter:
    """Nothing is drafted: every step is one pass over one token."""
    return NoDrafter()
