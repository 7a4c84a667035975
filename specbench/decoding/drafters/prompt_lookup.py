"""Prompt lookup: what followed the last tokens where they stood before is drafted again.

Source: A. Saxena, "Prompt Lookup Decoding" (github.com/apoorvumang/prompt-lookup-decoding, 2023).
"""

from typing import Annotated, NamedTuple

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.decoding.drafters import Drafter, drafter
from specbench.decoding.proposal import PointMass, Proposal
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.timing import Clock, PassLog

MatchLength = Annotated[int, Field(ge=1, le=16)]
MAX_MATCH = "How many of the last tokens are looked for first."
PER_MATCH = "Draft at most this many tokens for each token that matched; num_draft_tokens at most in any case."
MIN_MATCH = "The fewest last tokens that are looked for; at most max_match."


class Match(NamedTuple):
    """Where the continuation begins, and how many tokens before it are the last ones of the sequence."""

    place: int
    length: int


class SuffixIndex:
    """Where every n-gram of a growing sequence last stood with a token after it. `num_inserted` counts insertions."""

    def __init__(self, max_match: int, min_match: int) -> None:
        self.lengths = range(max_match, min_match - 1, -1)
        self.num_inserted = 0
        self.clear()

    def clear(self) -> None:
        self._continues_at: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0
        self._tail: list[int] = []

    def find(self, ids: list[int]) -> Match | None:
        """The longest suffix of `ids` that stood before, at its most recent occurrence."""
        self._update(ids)
        for length in self.lengths:
            place = self._continues_at.get(tuple(ids[-length:])) if length <= len(ids) else None
            if place is not None:
                return Match(place, length)
        return None

    def _update(self, ids: list[int]) -> None:
        """Take in what is new: one entry per token and length. Only a sequence that was cut back is read again."""
        start = self._num_indexed
        if len(ids) < start or ids[max(0, start - len(self._tail)) : start] != self._tail:
            self.clear()
            start = 0
        for place in range(max(1, start), len(ids)):  # the n-grams before `place`: what is at `place` continues them
            for length in self.lengths:
                if length <= place:
                    self._continues_at[tuple(ids[place - length : place])] = place
                    self.num_inserted += 1
        self._num_indexed = len(ids)
        self._tail = ids[-self.lengths.start :]


class PromptLookupDrafter(Drafter):
    """Drafts by copying; a copied EOS ends the draft. One pass is logged per proposal, with the tokens it drafted: the
    look-up is made once, so that the cost ratio is that of a whole proposal."""

    def __init__(
        self, max_match: int, min_match: int, tokens_per_match: int | None, eos_token_ids: frozenset[int]
    ) -> None:
        self.index = SuffixIndex(max_match, min_match)
        self.tokens_per_match = tokens_per_match
        self.eos_token_ids = eos_token_ids
        self.passes: PassLog | None = PassLog(Clock(torch.device("cpu")))

    def prefill(self, prompt_ids: list[int]) -> None:
        self.index.clear()
        self.index.find(prompt_ids)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        assert self.passes is not None
        start = self.passes.clock.mark()
        match = self.index.find(ids) if num_draft_tokens > 0 else None
        token_ids: list[int] = []
        if match is not None:
            most = num_draft_tokens if self.tokens_per_match is None else match.length * self.tokens_per_match
            token_ids = self.copy(ids, match.place, min(num_draft_tokens, most))
        self.passes.add(len(token_ids), start, self.passes.clock.mark())
        return Proposal(token_ids, PointMass(token_ids)) if token_ids else Proposal()

    def copy(self, ids: list[int], place: int, num_tokens: int) -> list[int]:
        """The tokens from `place` on. Where the sequence ends it goes on with what was copied: a period is repeated."""
        copied: list[int] = []
        for source in range(place, place + num_tokens):
            token = ids[source] if source < len(ids) else copied[source - len(ids)]
            copied.append(token)
            if token in self.eos_token_ids:
                break
        return copied


@drafter("prompt_lookup", provides=frozenset({"probs"}), needs_model=False)
def prompt_lookup_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    max_match: Annotated[MatchLength, Field(description=MAX_MATCH)] = 3,
    min_match: Annotated[MatchLength, Field(description=MIN_MATCH)] = 1,
    tokens_per_match: Annotated[int, Field(ge=1, le=64, description=PER_MATCH)] | None = None,
) -> PromptLookupDrafter:
    """What followed the last tokens where they stood before, in prompt or answer, is drafted again: looked for are the
    last `max_match` tokens, then fewer, down to `min_match`; the most recent place is taken. A short match promises
    less than a long one: `tokens_per_match` keeps its draft short, and the verifying pass cheap."""
    if min_match > max_match:
        raise ConfigError(f"drafter.min_match = {min_match}: is above max_match = {max_match}: give 1 to {max_match}")
    return PromptLookupDrafter(max_match, min_match, tokens_per_match, models.target.eos_token_ids)
