"""A growing sequence of target tokens, as a draft model with a vocabulary of its own reads it."""

from collections.abc import Sequence
from typing import NamedTuple

from specbench.core.errors import ConfigError
from specbench.decoding.drafters import Drafter
from specbench.models.causal_lm import ModelPair
from specbench.models.eager import common_prefix
from specbench.models.timing import Stopwatch
from specbench.models.vocabulary import Vocabulary

LOOK_BEHIND = 8  # target tokens before the end that later text may still merge with


class Reading(NamedTuple):
    """`draft_ids` write the same text; the last `num_held` target tokens, an incomplete character, are not in it."""

    draft_ids: list[int]
    num_held: int


class Translation:
    """Target tokens → draft tokens. Only the changed tail is encoded anew, so that the draft model's cache is cropped
    to a common prefix and never rebuilt.

    Where the target's tokens are what its tokenizer would write, the drafter reads what its own tokenizer would write;
    elsewhere (sampled text need not be cut as a tokenizer cuts it) tokens are carried over one by one where both
    vocabularies have them. Special tokens are left out; the drafter's own beginning of a text is put in front.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target = target
        self._draft = draft
        self.start([])

    def start(self, prompt_ids: list[int]) -> list[int]:
        """Forget the last sequence and read a new prompt."""
        self._ids: list[int] = []
        self._draft_ids = list(self._draft.bos_ids)
        self._points = [(0, len(self._draft_ids))]  # (target, draft) positions where both write the same text
        return self.read(prompt_ids).draft_ids

    def read(self, ids: list[int]) -> Reading:
        """The draft tokens of `ids`, which may go on from what was read before or differ from it in its tail."""
        known = common_prefix(self._ids, ids)
        while len(self._points) > 1 and self._points[-1][0] > max(0, known - LOOK_BEHIND // 2):
            self._points.pop()
        num_target, num_draft = self._points[-1]
        num_held = self._num_held(ids[num_target:])
        end = len(ids) - num_held
        tail = self._encode(ids[:num_target], ids[num_target:end])
        if tail is None:
            del self._points[1:]
            num_target, num_draft = self._points[0]
            tail = self._encode([], ids[:end]) or []
        self._ids = ids[:end]
        self._draft_ids = self._draft_ids[:num_draft] + tail
        self._add_point(num_target, num_draft, tail)
        return Reading(self._draft_ids, num_held)

    def _num_held(self, tail: Sequence[int]) -> int:
        return self._target.text(tail[-LOOK_BEHIND:])[1]

    def _encode(self, before_ids: list[int], ids: list[int]) -> list[int] | None:
        """The draft tokens of `ids` behind `before_ids`; None where one would hold parts of both."""
        if before_ids:
            before = running_text(self._target.to_bytes(before_ids[-LOOK_BEHIND:]))
            own = self._target.encode_after(before, running_text(self._target.to_bytes(ids))) or []
            num_own = self._whole(ids, common_prefix(own, ids))
            text = running_text(self._target.to_bytes(ids[:num_own]))
            encoded = self._draft.encode_after(before, text)
        else:
            before = ""
            ids = [index for index in ids if self._target.token_bytes[index] is not None]
            num_own = self._whole(ids, common_prefix(self._target.encode(self._target.text(ids)[0]), ids))
            text = self._target.text(ids[:num_own])[0]
            encoded = self._draft.encode(text)
        if encoded is None or num_own == len(ids):
            return encoded
        return encoded + self._one_by_one((before + text)[-4 * LOOK_BEHIND :], ids[num_own:])

    def _whole(self, ids: list[int], num_own: int) -> int:
        """Of the first tokens, which are cut as the target's tokenizer cuts, those that end with a whole character."""
        return num_own - self._num_held(ids[:num_own])

    def _one_by_one(self, before: str, ids: list[int]) -> list[int]:
        """Each token as the draft token with the same bytes; those between that have none, as the text they write."""
        found: list[int] = []
        pending = b""
        for index in [*ids, None]:
            written = b"" if index is None else self._target.token_bytes[index] or b""
            carried = None if index is None or not self._target.plain[index] else self._draft.id_of.get(written)
            if carried is None and index is not None:
                pending += written
                continue
            if pending:
                text = running_text(pending)
                behind = self._draft.encode_after(before, text) if before else None
                found += self._draft.encode(text) if behind is None else behind
                before, pending = text, b""
            if carried is not None:
                found.append(carried)
                before = (before + running_text(written))[-4 * LOOK_BEHIND :]
        return found

    def _add_point(self, num_target: int, num_draft: int, tail: list[int]) -> None:
        """Remember the last place, far enough from the end, where a token ends on both sides."""
        target_pieces = [self._target.token_bytes[index] or b"" for index in self._ids[num_target:]]
        draft_pieces = [self._draft.token_bytes[index] or b"" for index in tail]
        target_left, draft_left = len(target_pieces), len(draft_pieces)
        behind_target, behind_draft = 0, 0  # bytes behind each
        while target_left and draft_left:
            if behind_target <= behind_draft:
                target_left -= 1
                behind_target += len(target_pieces[target_left])
            else:
                draft_left -= 1
                behind_draft += len(draft_pieces[draft_left])
            if behind_target == behind_draft and len(target_pieces) - target_left >= LOOK_BEHIND and target_left:
                behind = b"".join(target_pieces[target_left:])
                if begins_a_character(behind):
                    if behind.lower() == b"".join(draft_pieces[draft_left:]).lower():
                        self._points.append((num_target + target_left, num_draft + draft_left))
                    return


def begins_a_character(written: bytes) -> bool:
    """Whether the first byte is no continuation byte of UTF-8."""
    return written[:1] != b"" and written[0] & 0xC0 != 0x80


def running_text(written: bytes) -> str:
    """Bytes from the middle of a text; what is left of a character that was cut at the front is dropped."""
    start = next((i for i, byte in enumerate(written[:4]) if byte & 0xC0 != 0x80), 0)
    return written[start:].decode(errors="replace")


class DraftContext:
    """The sequence in draft tokens, and how much of the draft model's context is left."""

    def __init__(self, models: ModelPair) -> None:
        assert models.drafter is not None
        self._model = models.drafter
        self._target = models.target.text_vocabulary
        self._draft = models.drafter.text_vocabulary
        self._translation = Translation(self._target, self._draft)
        self.tokenizing = Stopwatch()

    def read(self, ids: list[int]) -> Reading:
        """The sequence in draft tokens, as far as they write whole characters."""
        with self.tokenizing:
            return self._translation.read(ids)

    def prefill(self, drafter: Drafter, prompt_ids: list[int]) -> None:
        """Let the drafter read the prompt. Raises ConfigError when its context is too short for that."""
        draft_ids = self._translation.start(prompt_ids)
        limit = self._model.context_limit
        if limit is not None and len(draft_ids) >= limit:
            raise ConfigError(
                f"drafter '{self._model.name}': the prompt has {len(draft_ids)} of its tokens, but its context is "
                f"{limit} tokens; use a drafter with a longer context or leave the row out"
            )
        if draft_ids:
            drafter.prefill(draft_ids)

    def room(self, draft_ids: list[int], num_draft_tokens: int) -> int:
        """How many of `num_draft_tokens` fit into the context; none behind an empty sequence."""
        if not draft_ids:
            return 0
        limit = self._model.context_limit
        return num_draft_tokens if limit is None else max(0, min(num_draft_tokens, limit - len(draft_ids)))

    def exact(self, ids: list[int]) -> list[int]:
        """Draft tokens that write all of `ids`, an incomplete character at the end byte by byte; none at all where the
        draft vocabulary has no such bytes."""
        with self.tokenizing:
            return self._exact(ids)

    def _exact(self, ids: list[int]) -> list[int]:
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
