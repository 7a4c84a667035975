"""Token-level bridges: a draft token is translated to the target token with the same bytes (arXiv:2502.05202, Alg. 1
and 4)."""

from functools import cached_property
from typing import cast

import torch

from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES
from specbench.decoding.bridges import BridgedDrafter, MakeDrafter, MaskedDraftModel
from specbench.decoding.drafters import Drafter, end_mask
from specbench.decoding.proposal import OUT_OF_VOCABULARY, OnDeviceProposal, Proposal
from specbench.decoding.sampling import DenseProbs, Distributions, Sampling
from specbench.models.causal_lm import CausalLM, ModelPair


class SharedTokens:
    """The tokens with the same bytes in both vocabularies, without special tokens, added tokens and the drafter's end
    tokens."""

    def __init__(self, target: CausalLM, draft: CausalLM) -> None:
        ours, theirs = target.text_vocabulary.id_of, draft.text_vocabulary.id_of
        pairs = [
            (theirs[written], token)
            for written, token in ours.items()
            if token < target.vocab_size
            and theirs.get(written, draft.vocab_size) < draft.vocab_size
            and theirs[written] not in draft.eos_token_ids
        ]
        if not pairs:
            raise ConfigError(
                f"drafter '{draft.name}' has no token in common with target '{target.name}': "
                "use a method that drafts text, such as slem"
            )
        self.target_of = dict(pairs)
        self.draft_ids = torch.tensor([d for d, _ in pairs], dtype=torch.long, device=target.device)
        self.target_ids = torch.tensor([t for _, t in pairs], dtype=torch.long, device=target.device)
        self.target_size = target.vocab_size
        self.ends = draft.eos_token_ids
        self.is_end = end_mask(self.ends, draft.vocab_size, target.device)  # [draft_vocab]
        self.end_ids = self.is_end.nonzero()[:, 0]
        unknown = torch.full((draft.vocab_size,), OUT_OF_VOCABULARY, device=target.device)
        self.targets = unknown.index_copy(0, self.draft_ids, self.target_ids)  # [draft_vocab]

    @property
    def mask(self) -> torch.Tensor:
        """0 at the common tokens and at the drafter's end tokens, −∞ elsewhere: [draft_vocab]."""
        allowed = (self.targets != OUT_OF_VOCABULARY) | self.is_end
        return torch.zeros(allowed.shape, device=allowed.device).masked_fill(~allowed, float("-inf"))


class TranslatedProbs(DenseProbs):
    """Draft distributions over the target's vocabulary, given that the drafter draws no end token.

    A row sums to 1 minus the probability of draft tokens that the target's vocabulary lacks. `draft` may have one row
    more than the `num_rows` proposed tokens: the row from which the end token was drawn.
    """

    withholds_end = True

    def __init__(self, draft: DenseProbs, num_rows: int, common: SharedTokens) -> None:
        self._draft = draft
        self._num_rows = num_rows
        self._common = common
        self.is_one_hot = draft.is_one_hot

    @cached_property
    def probs(self) -> torch.Tensor:
        return self._to_target(self._draft.probs[: self._num_rows])

    @cached_property
    def raw_probs(self) -> torch.Tensor:
        return self._to_target(self._draft.raw_probs[: self._num_rows])

    def _to_target(self, draft_probs: torch.Tensor) -> torch.Tensor:
        rows = draft_probs.masked_fill(self._common.is_end, 0.0)
        carried = rows.new_zeros((len(rows), self._common.target_size))
        carried[:, self._common.target_ids] = rows[:, self._common.draft_ids]
        return carried / rows.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)

    def draw_overlap(self, overlap: torch.Tensor, target: Distributions) -> torch.Tensor:
        """Returns (1 − P(end)) · Σ min(p, q given no end), the probability that a draft token is drawn and accepted.

        One value per row of `draft`: [num_rows] → [num_drawn].
        """
        drawn = self._draft.probs
        if len(drawn) > len(overlap):
            behind = slice(len(overlap), len(drawn))
            carried = self._to_target(drawn[behind])
            overlap = torch.cat([overlap, torch.minimum(carried, target.probs[behind]).sum(dim=-1)])
        return overlap * (1.0 - drawn.index_select(1, self._common.end_ids).sum(dim=-1)).clamp_min(0.0)


class TokenBridge(BridgedDrafter):
    """A drafter whose tokens are translated one by one. A drafted end token ends the draft and is not proposed."""

    def __init__(self, drafter: Drafter, models: ModelPair, common: SharedTokens) -> None:
        super().__init__(drafter, models)
        self._common = common

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        draft_ids = self._exact(ids)
        num_draft_tokens = self._fitting(draft_ids, num_draft_tokens)
        if not num_draft_tokens:
            return Proposal()
        drafted = self._drafter.propose(draft_ids, num_draft_tokens, generator)
        if isinstance(drafted, OnDeviceProposal):
            # Pending tokens are translated by a table on the device and read together with the step's outcome.
            tokens = self._common.targets.index_select(0, drafted.tokens)
            is_proposed = drafted.is_proposed & ~self._common.is_end.index_select(0, drafted.tokens)
            probs = TranslatedProbs(cast(DenseProbs, drafted.probs), len(tokens), self._common)
            return OnDeviceProposal(tokens, is_proposed, probs, drafted)
        if not drafted.token_ids:
            return Proposal()
        token_ids: list[int] = []
        for index in drafted.token_ids:
            if index in self._common.ends or token_ids[-1:] == [OUT_OF_VOCABULARY]:
                break
            token_ids.append(self._common.target_of.get(index, OUT_OF_VOCABULARY))
        probs = TranslatedProbs(cast(DenseProbs, drafted.probs), len(token_ids), self._common)
        return Proposal(token_ids, probs, ended=len(token_ids) < drafted.num_drafted)


@BRIDGES.register("intersection")
def intersection(models: ModelPair, sampling: Sampling, make: MakeDrafter) -> Drafter:
    """Drafts only tokens that both vocabularies have: the draft logits are masked before sampling (TLI, Alg. 4)."""
    assert models.drafter is not None
    common = SharedTokens(models.target, models.drafter)
    view = MaskedDraftModel(models.drafter, common.ends, common.mask)
    return TokenBridge(make(view), models, common)


@BRIDGES.register("union")
def union(models: ModelPair, sampling: Sampling, make: MakeDrafter) -> Drafter:
    """Drafts any token. A token that the target's vocabulary lacks has p = 0 and ends the draft (Alg. 1)."""
    assert models.drafter is not None
    common = SharedTokens(models.target, models.drafter)
    unknown = set(range(models.drafter.vocab_size)) - common.target_of.keys()
    return TokenBridge(make(MaskedDraftModel(models.drafter, common.ends | unknown)), models, common)
