"""Prompt lookup: drafts the tokens that followed an earlier occurrence of the last tokens.

Source: A. Saxena, "Prompt Lookup Decoding" (github.com/apoorvumang/prompt-lookup-decoding, 2023).
"""

from typing import Annotated, NamedTuple

from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import LookUpDrafter
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair

MatchLength = Annotated[int, Field(ge=1, le=16)]
MAX_MATCH = "How many of the last tokens are looked for first."
PER_MATCH = "Draft at most this many tokens for each token that matched; num_draft_tokens at most in any case."
MIN_MATCH = "The fewest last tokens that are looked for; at most max_match."


class Match(NamedTuple):
    """A match: the position of the token after the earlier occurrence, and the number of matched tokens."""

    place: int
    length: int


class SuffixIndex:
    """An index of a growing sequence: the position after each n-gram's most recent occurrence that has a next token.

    `num_inserted` counts insertions.
    """

    def __init__(self, max_match: int, min_match: int) -> None:
        self.lengths = range(max_match, min_match - 1, -1)
        self.num_inserted = 0
        self.clear()

    def clear(self) -> None:
        self._continues_at: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0
        self._tail: list[int] = []

    def find(self, ids: list[int]) -> Match | None:
        """Returns the most recent match of the longest suffix of `ids` that occurred before; None without a match."""
        self._update(ids)
        for length in self.lengths:
            place = self._continues_at.get(tuple(ids[-length:])) if length <= len(ids) else None
            if place is not None:
                return Match(place, length)
        return None

    def _update(self, ids: list[int]) -> None:
        """Indexes the new tokens, one entry per token and length; indexes all tokens if the sequence was cut back."""
        start = self._num_indexed
        if len(ids) < start or ids[max(0, start - len(self._tail)) : start] != self._tail:
            self.clear()
            start = 0
        for place in range(max(1, start), len(ids)):  # the n-grams that end before `place`
            for length in self.lengths:
                if length <= place:
                    self._continues_at[tuple(ids[place - length : place])] = place
                    self.num_inserted += 1
        self._num_indexed = len(ids)
        self._tail = ids[-self.lengths.start :]


@DRAFTERS.register("prompt_lookup", provides={"probs"})
class PromptLookupDrafter(LookUpDrafter):
    """Drafts the tokens that followed an earlier occurrence of the last tokens, in prompt or answer. It looks for the
    last `max_match` tokens, then for fewer, down to `min_match`, and takes the most recent occurrence. A short match is
    less reliable than a long one: `tokens_per_match` keeps its draft short, and the target pass cheap."""

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        max_match: Annotated[MatchLength, Field(description=MAX_MATCH)] = 3,
        min_match: Annotated[MatchLength, Field(description=MIN_MATCH)] = 1,
        tokens_per_match: Annotated[int, Field(ge=1, le=64, description=PER_MATCH)] | None = None,
    ) -> None:
        super().__init__()
        check_matches(max_match, min_match)
        self.index = SuffixIndex(max_match, min_match)
        self.tokens_per_match = tokens_per_match
        self.eos_token_ids = models.target.eos_token_ids

    def prefill(self, prompt_ids: list[int]) -> None:
        self.index.clear()
        self.index.find(prompt_ids)

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], None]:
        match = self.index.find(ids) if num_draft_tokens > 0 else None
        if match is None:
            return [], None
        most = num_draft_tokens if self.tokens_per_match is None else match.length * self.tokens_per_match
        return self.copy(ids, match.place, min(num_draft_tokens, most)), None

    def copy(self, ids: list[int], place: int, num_tokens: int) -> list[int]:
        """Returns the tokens from `place` on, up to an EOS. Past the sequence's end it copies its own copies, repeating
        a period."""
        copied: list[int] = []
        for source in range(place, place + num_tokens):
            token = ids[source] if source < len(ids) else copied[source - len(ids)]
            copied.append(token)
            if token in self.eos_token_ids:
                break
        return copied


def check_matches(max_match: int, min_match: int) -> None:
    """Raises ConfigError if fewer tokens may match at most than at least."""
    if min_match > max_match:
        raise ConfigError(f"drafter.min_match = {min_match}: is above max_match = {max_match}: give 1 to {max_match}")
