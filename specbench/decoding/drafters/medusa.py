"""Medusa: heads on the target's last hidden state draft a tree without a draft pass (arXiv:2401.10774)."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import Drafter, padded_lengths
from specbench.decoding.proposal import Draws, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.decoding.tree_shape import NUM_NODES, Chance, TreeShape, best_shape_by_level, check_chances, fill_shape
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.heads.checkpoints import (
    HEADS,
    HeadCheckpoint,
    HeadRevision,
    medusa_heads_of_target,
    published_head,
    read_checkpoint,
)
from specbench.models.heads.medusa import MedusaHeads, load_medusa
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output


class MedusaDrafter(Drafter):
    """Proposes a tree of a fixed shape: the tokens at depth d are the most probable ones of head d, whatever the tokens
    before them. The pass of the heads is logged as a draft pass."""

    draws: Draws | None = "fixed"

    def __init__(self, heads: MedusaHeads, shape: TreeShape, num_layers: int, eos_token_ids: frozenset[int]) -> None:
        self.heads = heads
        self.shape = shape
        self.hidden_layers = (num_layers,)
        self.eos_token_ids = eos_token_ids
        self.passes: PassLog = PassLog(Clock(next(heads.parameters()).device))
        self._num_ranks = max(shape.ranks) + 1
        self._state = torch.empty(0)  # the hidden state of the last token that the target has read, [width]

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return padded_lengths(len(self.shape.parents))

    def prefill(self, prompt_ids: list[int]) -> None:
        pass  # the target reads the prompt first

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        best = self._best_tokens()
        tokens, parents = fill_shape(
            self.shape, num_draft_tokens, -1, self.eos_token_ids, lambda before, depth, rank: best[depth][rank]
        )
        return TreeProposal(tokens, parents) if tokens else Proposal()

    def _best_tokens(self) -> list[list[int]]:
        """Returns the most probable tokens of each head, [num_heads, num_ranks], in one timed pass."""
        start = self.passes.clock.mark()
        best: list[list[int]] = self.heads(self._state).topk(self._num_ranks, dim=-1).indices.tolist()
        self.passes.add(1, start, self.passes.clock.mark())
        return best

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        (states,) = output.hidden
        last = verification.path[-1] + 1 if verification.path else 0
        self._state = states[len(states) - 1 - len(proposal.scored_ids) + last]


PATH = (
    "Folder or hub id of the heads; null: those in the target's own checkpoint (Medusa-1.0), or those published for it."
)
NEEDS = "Medusa heads of the target (published ones are found by the target's name; `specbench train medusa`)"
HEAD_CHANCES = (
    "The chance that the token of each rank is accepted, one list for each head; the tree takes the nodes with the "
    "largest product of chances. null: chances that give as many nodes per level as the published tree has."
)
# Chosen, not measured: with 63 nodes they give 10, 28, 23 and 2 nodes per level, as the published tree of the 7B model.
CHANCES = [
    [0.7, 0.27, 0.16, 0.11, 0.08, 0.062, 0.051, 0.042, 0.036, 0.031],
    [0.5, 0.17, 0.09, 0.056, 0.04, 0.03, 0.023, 0.019, 0.016, 0.013],
    [0.36, 0.14, 0.08, 0.056, 0.041, 0.032, 0.026, 0.022, 0.019, 0.016],
    [0.12, 0.08, 0.06, 0.05, 0.045, 0.04, 0.038, 0.035, 0.033, 0.031],
]


def medusa_shape(
    *, num_nodes: int = 63, head_chances: Sequence[Sequence[float]] | None = None, **_: Any
) -> TreeShape:  # fmt: skip
    """Returns the tree that the options give."""
    return best_shape_by_level([check_chances(chances) for chances in head_chances or CHANCES], num_nodes)


def read_medusa_heads(target: CausalLM, path: str | None, revision: str | None) -> HeadCheckpoint:
    """Returns the heads at `path`, those published for the target, or those in its own checkpoint. Raises ConfigError
    if there are none."""
    if path is not None or target.name in HEADS["medusa"]:
        return read_checkpoint(path or published_head("medusa", target.name), revision)
    if revision is not None:
        raise ConfigError(f"drafter.revision = '{revision}': needs drafter.path with a hub id")
    return medusa_heads_of_target(target) or read_checkpoint(published_head("medusa", target.name))


@DRAFTERS.register("medusa", needs=NEEDS, tree_shape=medusa_shape)
def medusa_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    path: Annotated[str | None, Field(min_length=1, description=PATH)] = None,
    revision: HeadRevision = None,
    num_nodes: Annotated[int, Field(ge=1, le=1024, description=NUM_NODES)] = 63,
    head_chances: Annotated[
        list[Annotated[list[Chance], Field(min_length=1, max_length=64)]],
        Field(min_length=1, max_length=16, description=HEAD_CHANCES),
    ]
    | None = None,
) -> MedusaDrafter:
    """Heads on the target's last hidden state draft a tree of their most probable tokens, without a draft pass
    (arXiv:2401.10774)."""
    target = models.target
    checkpoint = read_medusa_heads(target, path, revision)
    heads = load_medusa(checkpoint, target)
    shape = medusa_shape(num_nodes=num_nodes, head_chances=head_chances or CHANCES[: len(heads)])
    if shape.depth > len(heads):
        raise ConfigError(
            f"drafter.head_chances: the tree has {shape.depth} levels, and '{checkpoint.name}' has {len(heads)} "
            f"heads: give {len(heads)} lists of chances or fewer"
        )
    made = MedusaDrafter(heads, shape, target.model.config.get_text_config().num_hidden_layers, target.eos_token_ids)
    made.name, made.revision = checkpoint.name, checkpoint.revision
    return made
