"""The bridge for string-level exact match: the target retokenizes the drafted text (arXiv:2502.05202, Alg. 2)."""

import torch

from specbench.core.registry import BRIDGES
from specbench.decoding.bridges import MakeDrafter
from specbench.decoding.bridges.translation import LOOK_BEHIND, BridgedDrafter, DraftContext, running_text
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import PointMass, Proposal
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.vocabulary import Vocabulary


class Retokenized(BridgedDrafter):
    """A drafter whose text is proposed in the target's tokens, with one-hot draft distributions."""

    def __init__(self, drafter: Drafter, context: DraftContext, target: Vocabulary, draft: Vocabulary) -> None:
        super().__init__(drafter, context)
        self._target = target
        self._draft = draft

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        draft_ids, num_held = self._context.read(ids)
        room = self._context.room(draft_ids, num_draft_tokens)
        if not room:
            return Proposal()
        drafted_ids = self._drafter.propose(draft_ids, room, generator).token_ids
        with self.tokenizing:
            text = self._text(drafted_ids)
            token_ids = self._encode_after(ids, num_held, text)[:num_draft_tokens] if text else []
        return Proposal(token_ids, PointMass(token_ids)) if token_ids else Proposal()

    def _text(self, draft_ids: list[int]) -> str:
        """Returns the draft's text up to a special token or to bytes that are not (yet) valid UTF-8."""
        written = b""
        for index in draft_ids:
            piece = self._draft.token_bytes[index]
            if piece is None:
                break
            written += piece
        try:
            return written.decode()
        except UnicodeDecodeError as error:
            return written[: error.start].decode()

    def _encode_after(self, ids: list[int], num_held: int, text: str) -> list[int]:
        """Returns the target tokens of `text` after `ids`, whose last `num_held` tokens are the beginning of `text`.

        The text is encoded together with the text before it (look-behind, §3.2). If a token would then span the
        boundary, the text is encoded as if at the beginning of a line, since the tokens before the boundary are fixed.
        Returns no tokens if neither encoding starts with the last `num_held` tokens.
        """
        settled, held = ids[: len(ids) - num_held], ids[len(ids) - num_held :]
        before = running_text(self._target.to_bytes(settled[-LOOK_BEHIND:]))
        for anchor in (before, "\n"):
            token_ids = self._target.encode_after(anchor, text)
            if token_ids is not None and token_ids[:num_held] == held:
                return self._before_special(token_ids[num_held:])
        return []

    def _before_special(self, token_ids: list[int]) -> list[int]:
        """Returns the tokens before the first special, added or unknown token, which may not be proposed."""
        crossing = [self._target.plain[index] for index in token_ids]
        return token_ids[: crossing.index(False)] if False in crossing else token_ids


@BRIDGES.register("retokenize", removes={"raw_probs"})
def retokenize(models: ModelPair, sampling: Sampling, make: MakeDrafter) -> Drafter:
    """Drafts in the drafter's own tokens and proposes the target's tokens of the same text (SLEM)."""
    assert models.drafter is not None
    target, draft = models.target.text_vocabulary, models.drafter.text_vocabulary
    return Retokenized(make(models.drafter), DraftContext(models), target, draft)
