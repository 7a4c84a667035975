"""What a draft model with another vocabulary has before it when it drafts."""

from specbench.decoding.bridges.translation import Reading, Translation
from specbench.decoding.drafters import Drafter
from specbench.errors import ConfigError
from specbench.models.pair import ModelPair
from specbench.models.timing import Stopwatch


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
