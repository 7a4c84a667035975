"""Token recycling: a tree of the tokens that the target last thought likely after each token (arXiv:2408.08696)."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import Drafter, padded_lengths
from specbench.decoding.proposal import Draws, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.decoding.tree_shape import (
    DEPTH,
    NUM_NODES,
    RANK_CHANCES,
    USUAL_CHANCES,
    Chance,
    TreeShape,
    best_shape,
    check_chances,
    fill_shape,
)
from specbench.models.causal_lm import ModelPair
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output


class TokenRecycling(Drafter):
    """Remembers the target's most probable tokens after each token that it read, and proposes them as a tree.

    Tokens that the target has not read yet have no children. One look-up per proposal is logged as a pass.
    """

    draws: Draws | None = "fixed"

    def __init__(self, shape: TreeShape, num_ranks: int, eos_token_ids: frozenset[int], forgets: bool) -> None:
        self.shape = shape
        self.num_ranks = num_ranks
        self.eos_token_ids = eos_token_ids
        self.learns_over_prompts = not forgets
        self.passes: PassLog = PassLog(Clock(torch.device("cpu")))
        self._followers: dict[int, list[int]] = {}
        self._last_token = -1

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return padded_lengths(len(self.shape.parents))

    def begin_cell(self) -> None:
        self._followers = {}

    def prefill(self, prompt_ids: list[int]) -> None:
        if not self.learns_over_prompts:
            self._followers = {}
        self._last_token = prompt_ids[-1]

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        start = self.passes.clock.mark()
        self._last_token = ids[-1]
        tokens, parents = fill_shape(self.shape, num_draft_tokens, ids[-1], self.eos_token_ids, self._follower)
        self.passes.add(len(tokens), start, self.passes.clock.mark())
        return TreeProposal(tokens, parents) if tokens else Proposal()

    def _follower(self, token: int, depth: int, rank: int) -> int | None:
        """Returns the remembered follower of this rank after a token; None if there is none."""
        followers = self._followers.get(token, [])
        return followers[rank] if rank < len(followers) else None

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        num_ranks = min(self.num_ranks, output.logits.shape[-1])
        best: list[list[int]] = output.logits.topk(num_ranks, dim=-1).indices.tolist()
        self._followers.update(zip([self._last_token, *proposal.token_ids], best, strict=True))


MEMORY = (
    "prompt: the remembered tokens are forgotten before each prompt; cell: they are kept for all prompts of a cell (a "
    "task's subset) and forgotten before the next, so that a prompt's speed depends on the prompts before it; a "
    "resumed run begins with an empty memory. The published code keeps them over all prompts."
)


def recycling_shape(
    *, num_nodes: int = 80, depth: int = 6, rank_chances: Sequence[float] = USUAL_CHANCES, **others: Any
) -> TreeShape:
    """Returns the tree that the options give."""
    return best_shape(check_chances(rank_chances), num_nodes, depth)


@DRAFTERS.register("token_recycling", tree_shape=recycling_shape)
def token_recycling_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    num_nodes: Annotated[int, Field(ge=1, le=1024, description=NUM_NODES)] = 80,
    depth: Annotated[int, Field(ge=1, le=16, description=DEPTH)] = 6,
    rank_chances: Annotated[list[Chance], Field(min_length=1, max_length=64, description=RANK_CHANCES)] = USUAL_CHANCES,
    memory: Annotated[Literal["prompt", "cell"], Field(description=MEMORY)] = "prompt",
) -> TokenRecycling:
    """A tree of the tokens that the target thought most probable when it last read each token. Needs no model and no
    training."""
    shape = recycling_shape(num_nodes=num_nodes, depth=depth, rank_chances=rank_chances)
    return TokenRecycling(shape, len(rank_chances), models.target.eos_token_ids, forgets=memory == "prompt")
