"""The bridge for string-level rejection sampling: it proposes the longest target token that is a prefix of the drafted
text (arXiv:2502.05202, Alg. 3)."""

from itertools import accumulate
from typing import Annotated

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES
from specbench.decoding.bridges import MakeDrafter
from specbench.decoding.bridges.psi import Psi, StringProbs
from specbench.decoding.bridges.string_tree import DraftTree, PassBudget, Suffix
from specbench.decoding.bridges.translation import BridgedDrafter, DraftContext
from specbench.decoding.bridges.trie import Crossing
from specbench.decoding.drafters import Drafter
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.proposal import OUT_OF_VOCABULARY, PointMass, Proposal
from specbench.decoding.sampling import DraftProbs, Sampling
from specbench.models.causal_lm import CausalLM, ModelPair


class StringBridge(BridgedDrafter):
    """A drafter that drafts text until its first target token is known, proposes this token, and continues after it.

    Drafted text beyond the token is discarded and drawn again. If no target token is a prefix of the text, for example
    because the drafter ended the text, OUT_OF_VOCABULARY is proposed.
    """

    sampling: Sampling

    def __init__(self, drafter: ModelDrafter, models: ModelPair, greedy: bool, max_draft_passes: int) -> None:
        assert models.drafter is not None
        super().__init__(drafter, DraftContext(models))
        self._model = models.drafter
        self._crossing = crossing(models.target, models.drafter)
        self._greedy = greedy
        self._max_draft_passes = max_draft_passes

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        token_ids: list[int] = []
        psis: list[Psi] = []
        draft_ids = self._context.exact(ids) if num_draft_tokens else []
        tree = self._tree(draft_ids)
        while len(token_ids) < num_draft_tokens and self._has_room(draft_ids):
            if draft_ids[: len(tree.context)] != tree.context:
                tree = self._tree(draft_ids, tree.budget)
            psi = Psi(self._crossing, tree, tuple(draft_ids[len(tree.context) :]))
            token, drawn = psi.draw(generator)
            token_ids.append(token)
            psis.append(psi)
            if token == OUT_OF_VOCABULARY:
                break
            draft_ids = self._context_after(token, draft_ids, drawn) or self._context.exact(ids + token_ids)
        return Proposal(token_ids, self._probs(token_ids, psis)) if token_ids else Proposal()

    def _tree(self, draft_ids: list[int], budget: PassBudget | None = None) -> DraftTree:
        budget = budget or PassBudget(self._max_draft_passes)
        return DraftTree(self._model, self.sampling, self._crossing.order, draft_ids, budget)

    def _has_room(self, draft_ids: list[int]) -> bool:
        """Returns whether the drafter has a context, with room for the longest text that ψ may have to read."""
        depth = self._crossing.target.depth
        return self._context.room(draft_ids, depth) == depth

    def _context_after(self, token: int, draft_ids: list[int], drawn: Suffix) -> list[int] | None:
        """Returns the drafter's context after a proposed token; None if the token ends inside a draft token."""
        written = self._crossing.written
        ends = list(accumulate(len(written.get(draft_token, b"")) for draft_token in drawn))
        length = len(self._crossing.target.strings[self._crossing.position_of[token]])
        return [*draft_ids, *drawn[: ends.index(length) + 1]] if length in ends else None

    def _probs(self, token_ids: list[int], psis: list[Psi]) -> DraftProbs | None:
        if self.sampling.greedy:
            return PointMass(token_ids)
        return None if self._greedy else StringProbs(token_ids, psis)


def crossing(target: CausalLM, draft: CausalLM) -> Crossing:
    """Returns the tries of both models' tokens, without special tokens, added tokens and the drafter's end tokens."""
    ours, theirs = target.text_vocabulary, draft.text_vocabulary
    return Crossing(
        [(written, token) for written, token in ours.id_of.items() if token < target.vocab_size],
        [
            (written, token)
            for token, written in enumerate(theirs.token_bytes[: draft.vocab_size])
            if written and theirs.plain[token] and token not in draft.eos_token_ids
        ],
        draft.vocab_size,
    )


CAP = "Draft contexts that one step may read; where ψ needs more, the run ends with an error."


@BRIDGES.register("string", removes={"raw_probs"})
def string(
    models: ModelPair,
    sampling: Sampling,
    make: MakeDrafter,
    *,
    max_draft_passes: Annotated[int, Field(ge=1, le=1_000_000, description=CAP)] = 4096,
) -> Drafter:
    """Drafts text and proposes its first target token; its draft probability ψ is the sum over all drafts that begin
    with it (SLRS).

    The draft model reads at most `max_draft_passes` contexts in one step; if ψ needs more, the run ends with an error.
    """
    assert models.drafter is not None
    drafter = make(models.drafter)
    if not isinstance(drafter, ModelDrafter):
        raise ConfigError(
            "bridge = 'string': it needs the distributions of a draft model: use drafter: {type: model}, or the bridge "
            "'retokenize' for another drafter"
        )
    return StringBridge(drafter, models, sampling.greedy, max_draft_passes)
