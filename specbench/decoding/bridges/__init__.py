"""Vocabulary bridges: they translate a drafter's tokens into tokens of the target. This module holds the bridge for
equal vocabularies, the translation between two vocabularies, and `retokenize`, the bridge for string-level exact match
(arXiv:2502.05202, Alg. 2).

The factory of a bridge is (models, sampling, make, *, options) → Drafter.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile

import torch

from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES
from specbench.decoding.draft_length import DraftLength
from specbench.decoding.drafters import Drafter
from specbench.decoding.proposal import PointMass, Proposal
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair, TextModel
from specbench.models.eager import common_prefix
from specbench.models.meters import Stopwatch
from specbench.models.scoring import Output, ScoringModel
from specbench.models.vocabulary import Vocabulary, can_share_ids, continues_character, same_ids

MakeDrafter = Callable[[ScoringModel], Drafter]
LOOK_BEHIND = 8  # last target tokens that may still merge with later text


class VocabularyMismatch(ConfigError):
    """The bridge needs a shared vocabulary, but target and drafter have different ones."""

    def __init__(self, target: TextModel, draft: TextModel, common: frozenset[int]) -> None:
        ours, theirs = (f"{len(model.vocabulary)} tokens, {model.vocab_size} logits" for model in (target, draft))
        super().__init__(
            f"drafter '{draft.name}' ({theirs}) has another vocabulary than target '{target.name}' ({ours}; "
            f"{len(common)} tokens in common under the same id)"
        )


def common_ids(target: TextModel, draft: TextModel) -> frozenset[int] | None:
    """Returns the ids that mean the same token in both vocabularies and to which both models give a probability; None
    if the vocabularies are equal."""
    ours, theirs, size = target.vocabulary, draft.vocabulary, min(target.vocab_size, draft.vocab_size)
    if ours != theirs:
        same = same_ids(ours, theirs, target.text_vocabulary, draft.text_vocabulary)
        return frozenset(index for index in same if index < size)
    return None if target.vocab_size == draft.vocab_size else frozenset(i for i in ours.values() if i < size)


def share_ids(target: TextModel, draft: TextModel) -> bool:
    """Returns whether two vocabularies are equal, or differ in so few tokens that a drafter may draft the others."""
    common = common_ids(target, draft)
    return common is None or can_share_ids(len(common), target.vocab_size, draft.vocab_size)


def check_equal(target: TextModel, draft: TextModel) -> None:
    """Raises VocabularyMismatch, which names both sizes, for vocabularies that differ in any token."""
    if (common := common_ids(target, draft)) is not None:
        raise VocabularyMismatch(target, draft, common)


def check_shared(target: TextModel, draft: TextModel) -> frozenset[int] | None:
    """Returns the `common_ids` of two vocabularies. Raises VocabularyMismatch if they are too few to draft them alone
    (see `share_ids`)."""
    common = common_ids(target, draft)
    if common is not None and not can_share_ids(len(common), target.vocab_size, draft.vocab_size):
        raise VocabularyMismatch(target, draft, common)
    return common


class MaskedDraftModel(ScoringModel):
    """A draft model whose drafts end at the tokens `ends`. `mask` [vocab] is added to its logits, −∞ at the tokens that
    are not to be drawn; tokens beyond the mask are cut off, and missing ones have the logit 0 before it."""

    def __init__(self, model: ScoringModel, ends: frozenset[int], mask: torch.Tensor | None = None) -> None:
        self._model = model
        self._mask = mask
        self.passes = model.passes
        self.eos_token_ids = ends
        # If other tokens than EOS end a draft, passes after them would be wasted, so each token is read at once.
        self.prefers_pending = model.prefers_pending and ends <= model.eos_token_ids

    @property
    def underlying(self) -> ScoringModel:
        return self._model

    def reset(self) -> None:
        self._model.reset()

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        return self._masked(self._model.score(ids, num_logits, pending))

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        return self._masked(self._model.score_tree(ids, tree_ids, parents, num_logits))

    def keep_path(self, path: Sequence[int]) -> None:
        self._model.keep_path(path)

    def resolve_pending(self, token_ids: list[int]) -> None:
        self._model.resolve_pending(token_ids)

    def _masked(self, output: Output) -> Output:
        if self._mask is None:
            return output
        logits = output.logits[..., : len(self._mask)]
        if (missing := len(self._mask) - logits.shape[-1]) > 0:
            logits = torch.nn.functional.pad(logits, (0, missing))
        return output._replace(logits=logits + self._mask)


class CommonIdsModel(MaskedDraftModel):
    """A draft model whose vocabulary differs from the target's in a few tokens, as a model over the target's ids.

    Its logits are −∞ at all ids but the common ones, so that nothing else is drawn and q is 0 there. It reads another
    token in place of a target token that it lacks: the last one of that token's text, so that positions stay aligned.
    Whatever it reads, q is a function of the context alone, and the output remains the target's.
    """

    def __init__(self, model: CausalLM, target: CausalLM, common: frozenset[int]) -> None:
        mask = torch.full((target.vocab_size,), float("-inf"), device=target.device)
        mask[sorted(common)] = 0.0
        super().__init__(model, model.eos_token_ids & common, mask)
        self._read_as = list(range(target.vocab_size))  # by target id, the id that the draft model reads
        strings = {index: token for token, index in target.vocabulary.items()}
        for index in set(range(target.vocab_size)) - common:
            written = target.text_vocabulary.token_bytes[index] if index < target.text_vocabulary.size else None
            text = str(strings.get(index, "")) if written is None else written.decode(errors="replace")
            own = [*model.text_vocabulary.encode(text)[-1:], model.tokenizer.unk_token_id][0]
            self._read_as[index] = min(common) if own is None or own >= model.vocab_size else own
        self._table = torch.tensor(self._read_as, dtype=torch.long, device=target.device)
        self._ids: list[int] = []  # of the last sequence, by the target's and by the draft model's vocabulary
        self._own_ids: list[int] = []

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        own_pending = None if pending is None else self._table.index_select(0, pending)
        return super().score(self._translated(ids), num_logits, own_pending)

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        own_tree = [self._read_as[index] for index in tree_ids]
        return super().score_tree(self._translated(ids), own_tree, parents, num_logits)

    def resolve_pending(self, token_ids: list[int]) -> None:
        super().resolve_pending([self._read_as[index] for index in token_ids])

    def _translated(self, ids: list[int]) -> list[int]:
        """Returns the ids as the draft model reads them. Only those that the last sequence lacks are looked up."""
        num_known = common_prefix(self._ids, ids)
        self._own_ids = self._own_ids[:num_known] + [self._read_as[index] for index in ids[num_known:]]
        self._ids = list(ids)
        return self._own_ids


@BRIDGES.register("shared")
def shared(models: ModelPair, sampling: Sampling, make: MakeDrafter) -> Drafter:
    """The drafter has the target's vocabulary, so no translation is needed. If the two differ in at most 1 % of their
    tokens, such as a few added ones, the drafter drafts only ids that mean the same token in both. A drafter with
    another vocabulary raises VocabularyMismatch, which names both sizes."""
    target, draft_model = models.target, models.drafter
    assert draft_model is not None
    common = check_shared(target, draft_model)
    return make(draft_model if common is None else CommonIdsModel(draft_model, target, common))


class Translation:
    """A translation of target tokens into draft tokens. Only the changed tail is encoded again, so that the draft
    model's cache is cropped to a common prefix and never rebuilt.

    As long as the target's tokens are what its tokenizer produces for their text, the text is encoded with the
    drafter's tokenizer. Later tokens (sampled tokens may differ from a tokenizer's output) are translated one by one if
    both vocabularies have them. Special tokens are left out; the sequence starts with the drafter's own BOS tokens.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target = target
        self._draft = draft
        self.start([])

    def start(self, prompt_ids: list[int]) -> list[int]:
        """Resets the cache and prefills a new prompt. Returns its draft tokens."""
        self._ids: list[int] = []
        self._draft_ids = list(self._draft.bos_ids)
        self._points = [(0, len(self._draft_ids))]  # (target, draft) positions with the same text before them
        return self.read(prompt_ids)[0]

    def read(self, ids: list[int]) -> tuple[list[int], int]:
        """Returns the draft tokens of `ids`, which may extend the last sequence or differ from it at the end, and the
        number of its last tokens that are left out as an incomplete character."""
        known = common_prefix(self._ids, ids)
        while len(self._points) > 1 and self._points[-1][0] > max(0, known - LOOK_BEHIND // 2):
            self._points.pop()
        num_target, num_draft = self._points[-1]
        num_held = self._target.text(ids[num_target:][-LOOK_BEHIND:])[1]
        end = len(ids) - num_held
        tail = self._encode(ids[:num_target], ids[num_target:end])
        if tail is None:
            del self._points[1:]
            num_target, num_draft = self._points[0]
            tail = self._encode([], ids[:end]) or []
        self._ids = ids[:end]
        self._draft_ids = self._draft_ids[:num_draft] + tail
        self._add_point(num_target, num_draft, tail)
        return self._draft_ids, num_held

    def _encode(self, before_ids: list[int], ids: list[int]) -> list[int] | None:
        """Returns the draft tokens of `ids` after `before_ids`; None if a draft token would span the boundary."""
        # 1. As long as the tokens are what the target's tokenizer produces, their text is encoded, up to the last
        #    complete character.
        before = ""
        if before_ids:
            before = running_text(self._target.to_bytes(before_ids[-LOOK_BEHIND:]))
            own = self._target.encode_after(before, running_text(self._target.to_bytes(ids))) or []
        else:
            ids = [index for index in ids if self._target.token_bytes[index] is not None]
            own = self._target.encode(self._target.text(ids)[0])
        num_own = common_prefix(own, ids)
        num_own -= self._target.text(ids[:num_own][-LOOK_BEHIND:])[1]
        if before_ids:
            text = running_text(self._target.to_bytes(ids[:num_own]))
            draft_ids = self._draft.encode_after(before, text)
        else:
            text = self._target.text(ids[:num_own])[0]
            draft_ids = self._draft.encode(text)
        if draft_ids is None:
            return None
        # 2. Each later token becomes the draft token with the same bytes; tokens without one are encoded as text.
        before = (before + text)[-4 * LOOK_BEHIND :]
        pending = b""
        for index in [*ids[num_own:], None]:
            written = b"" if index is None else self._target.token_bytes[index] or b""
            carried = None if index is None or not self._target.plain[index] else self._draft.id_of.get(written)
            if carried is None and index is not None:
                pending += written
                continue
            if pending:
                text = running_text(pending)
                behind = self._draft.encode_after(before, text) if before else None
                draft_ids += self._draft.encode(text) if behind is None else behind
                before = text
                pending = b""
            if carried is not None:
                draft_ids.append(carried)
                before = (before + running_text(written))[-4 * LOOK_BEHIND :]
        return draft_ids

    def _add_point(self, num_target: int, num_draft: int, tail: list[int]) -> None:
        """Stores the last position, at least LOOK_BEHIND target tokens from the end, where tokens end on both sides."""
        target_pieces = [self._target.token_bytes[index] or b"" for index in self._ids[num_target:]]
        draft_pieces = [self._draft.token_bytes[index] or b"" for index in tail]
        target_left, draft_left = len(target_pieces), len(draft_pieces)
        behind_target, behind_draft = 0, 0  # bytes after the position, on each side
        while target_left and draft_left:
            if behind_target <= behind_draft:
                target_left -= 1
                behind_target += len(target_pieces[target_left])
            else:
                draft_left -= 1
                behind_draft += len(draft_pieces[draft_left])
            if behind_target == behind_draft and len(target_pieces) - target_left >= LOOK_BEHIND and target_left:
                behind = b"".join(target_pieces[target_left:])
                if behind and not continues_character(behind):
                    if behind.lower() == b"".join(draft_pieces[draft_left:]).lower():
                        self._points.append((num_target + target_left, num_draft + draft_left))
                    return


def running_text(written: bytes) -> str:
    """Decodes bytes from the middle of a text, without the rest of a character that was cut at the front."""
    start = next((i for i in range(min(4, len(written))) if not continues_character(written[i:])), 0)
    return written[start:].decode(errors="replace")


class BridgedDrafter(Drafter):
    """A drafter behind a vocabulary bridge, which reads and drafts tokens of its own vocabulary.

    It cannot observe the target's passes, whose tokens are different. Raises ConfigError for a drafter that reads the
    target's hidden states.
    """

    tokenizing: Stopwatch

    def __init__(self, drafter: Drafter, models: ModelPair) -> None:
        if drafter.hidden_layers:
            raise ConfigError(
                "the drafter reads the target's hidden states, which no vocabulary bridge translates: use a drafter "
                "with the target's vocabulary"
            )
        assert models.drafter is not None
        self._drafter = drafter
        self._model = models.drafter
        self._target = models.target.text_vocabulary
        self._draft = models.drafter.text_vocabulary
        self._translation = Translation(self._target, self._draft)
        self.name, self.revision = drafter.name, drafter.revision
        self.passes = drafter.passes
        self.tokenizing = Stopwatch()
        self.sampling = drafter.sampling

    def rehearse(self, decode: Callable[[], object]) -> None:
        self._drafter.rehearse(decode)

    def use_length(self, length: DraftLength) -> None:
        super().use_length(length)
        self._drafter.use_length(length)

    def reserve(self, num_draft_tokens: int) -> tuple[int, float]:
        return self._drafter.reserve(num_draft_tokens)

    def prefill(self, prompt_ids: list[int]) -> None:
        """Prefills the drafter. Raises ConfigError if its context is too short for the prompt and it does not pause
        there."""
        draft_ids = self._translation.start(prompt_ids)
        limit = self._model.context_limit
        if limit is not None and len(draft_ids) >= limit and self._drafter.pauses_at is None:
            raise ConfigError(
                f"drafter '{self._model.name}': the prompt is {len(draft_ids)} of its tokens long, but its context is "
                f"{limit} tokens; use a drafter with a longer context, let it pause with --set "
                "drafter.beyond_context=pause, or leave the row out"
            )
        if draft_ids and self._drafter.room(len(draft_ids)):
            self._drafter.prefill(draft_ids)

    def _fitting(self, draft_ids: list[int], num_draft_tokens: int) -> int:
        """Returns how many of `num_draft_tokens` fit into the draft model's context; 0 after an empty sequence."""
        if not draft_ids:
            return 0
        limit = self._model.context_limit
        return num_draft_tokens if limit is None else max(0, min(num_draft_tokens, limit - len(draft_ids)))

    def _exact(self, ids: list[int]) -> list[int]:
        """Returns draft tokens for all of `ids`; an incomplete character at the end may become single bytes.

        Returns no tokens if the draft vocabulary lacks one of these bytes.
        """
        with self.tokenizing:
            draft_ids, num_held = self._translation.read(ids)
            held: list[int] = []
            for index in ids[len(ids) - num_held :]:
                written = self._target.token_bytes[index] or b""
                whole = self._draft.id_of.get(written)
                pieces = [whole] if whole is not None else [self._draft.id_of.get(bytes([byte])) for byte in written]
                held += [piece for piece in pieces if piece is not None]
                if None in pieces:
                    return []
            return draft_ids + held


class Retokenized(BridgedDrafter):
    """A drafter whose text is proposed in the target's tokens, with one-hot draft distributions."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        with self.tokenizing:
            draft_ids, num_held = self._translation.read(ids)
        room = self._fitting(draft_ids, num_draft_tokens)
        if not room:
            return Proposal()
        drafted_ids = self._drafter.propose(draft_ids, room, generator).token_ids
        with self.tokenizing:
            token_ids = self._translated(drafted_ids, ids, num_held)[:num_draft_tokens]
        return Proposal(token_ids, PointMass(token_ids)) if token_ids else Proposal()

    def _translated(self, draft_ids: list[int], ids: list[int], num_held: int) -> list[int]:
        """Returns the target tokens of the draft's text after `ids`, whose last `num_held` tokens are the beginning of
        that text.

        The text is encoded together with the text before it (look-behind, §3.2). If a token would then span the
        boundary, the text is encoded as if at the beginning of a line, since the tokens before the boundary are fixed.
        Returns no tokens if neither encoding starts with the last `num_held` tokens.
        """
        # The text ends before a special token, and before bytes that are not (yet) valid UTF-8.
        pieces = takewhile(lambda piece: piece is not None, (self._draft.token_bytes[index] for index in draft_ids))
        written = b"".join(filter(None, pieces))
        try:
            text = written.decode()
        except UnicodeDecodeError as error:
            text = written[: error.start].decode()
        settled, held = ids[: len(ids) - num_held], ids[len(ids) - num_held :]
        before = running_text(self._target.to_bytes(settled[-LOOK_BEHIND:]))
        for anchor in (before, "\n") if text else ():
            token_ids = self._target.encode_after(anchor, text)
            if token_ids is not None and token_ids[:num_held] == held:
                # Special, added and unknown tokens may not be proposed.
                return list(takewhile(self._target.plain.__getitem__, token_ids[num_held:]))
        return []


@BRIDGES.register("retokenize")
def retokenize(models: ModelPair, sampling: Sampling, make: MakeDrafter) -> Drafter:
    """Drafts in the drafter's own tokens and proposes the target's tokens of the same text (SLEM)."""
    assert models.drafter is not None
    return Retokenized(make(models.drafter), models)
