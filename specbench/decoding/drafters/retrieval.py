"""Drafters that copy what followed an earlier occurrence of the text's end: in the text itself, or in a corpus.

Sources: A. Saxena, "Prompt Lookup Decoding" (github.com/apoorvumang/prompt-lookup-decoding, 2023); REST
(arXiv:2311.08252).
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import LookUpDrafter
from specbench.decoding.drafters.ngram import model_for
from specbench.decoding.proposal import Draws, Proposal
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.corpus_models import Datastore, most_frequent_tree

MatchLength = Annotated[int, Field(ge=1, le=16)]
MAX_MATCH = "Longest suffix to match."
PER_MATCH = "Maximum draft tokens per matched token, capped at num_draft_tokens."
MIN_MATCH = "Shortest suffix to match; at most max_match."
MAX_LEVELS = 64  # a continuation may have any length
PATH = "Folder of the datastore, as `specbench train retrieval` writes it; null: the one of the embedded target."
NEEDS = "a datastore of the target's tokens (`specbench train retrieval`; one ships with the embedded target)"
NODES = "Maximum tree size; keeps the most frequent tokens."
CORPUS_MAX_MATCH = "Longest suffix to look up."
CORPUS_MIN_MATCH = "Shortest suffix that must occur in the corpus; otherwise nothing is drafted."
OCCURRENCES = (
    "The number of occurrences whose continuations are counted. If there are more, an evenly spaced sample is counted."
)


def lookup_drawing(
    *, max_match: int, min_match: int, tokens_per_match: int | None, **others: object
) -> tuple[Sequence[str], str]:
    limit = f", at most {tokens_per_match} per matched token" * (tokens_per_match is not None)
    return ("text    … c d e f g … b c d e … x c d e", "draft                               f g …"), (
        f"The last {max_match} tokens are looked up in the text, then fewer, down to {min_match}. Of the places where "
        f"they occur the latest is taken, and the draft is what followed there{limit}."
    )


@DRAFTERS.register("prompt_lookup", looks_up=True, drawing=lookup_drawing)
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
        self.lengths = range(max_match, min_match - 1, -1)
        self.tokens_per_match = tokens_per_match
        self.eos_token_ids = models.target.eos_token_ids
        self._continues_at: dict[tuple[int, ...], int] = {}  # the place after each n-gram's latest occurrence
        self._num_indexed = 0

    def prefill(self, prompt_ids: list[int]) -> None:
        self._continues_at, self._num_indexed = {}, 0
        self._index(prompt_ids)

    def rewind(self, ids: list[int]) -> None:
        self.prefill(ids)

    def _index(self, ids: list[int]) -> None:
        """Indexes the new tokens of the sequence, one entry per token and length."""
        for place in range(max(1, self._num_indexed), len(ids)):  # the n-grams that end before `place`
            for length in self.lengths:
                if length <= place:
                    self._continues_at[tuple(ids[place - length : place])] = place
        self._num_indexed = len(ids)

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], None]:
        if num_draft_tokens <= 0:
            return [], None
        self._index(ids)
        known = [length for length in self.lengths if length <= len(ids) and tuple(ids[-length:]) in self._continues_at]
        if not known:
            return [], None
        length = known[0]
        place = self._continues_at[tuple(ids[-length:])]
        if self.tokens_per_match is not None:
            num_draft_tokens = min(num_draft_tokens, length * self.tokens_per_match)
        copied: list[int] = []
        for source in range(place, place + num_draft_tokens):
            # Past the sequence's end it copies its own copies, repeating a period.
            token = ids[source] if source < len(ids) else copied[source - len(ids)]
            copied.append(token)
            if token in self.eos_token_ids:
                break
        return copied, None


def check_matches(max_match: int, min_match: int) -> None:
    """Raises ConfigError if fewer tokens may match at most than at least."""
    if min_match > max_match:
        raise ConfigError(f"drafter.min_match = {min_match}: is above max_match = {max_match}: give 1 to {max_match}")


@DRAFTERS.register("retrieval", needs=NEEDS, looks_up=True, tree_shape=lambda **options: MAX_LEVELS)
class RetrievalDrafter(LookUpDrafter):
    """A tree of the most frequent continuations, in a corpus, of the longest suffix of the text that occurs there.
    Needs no model. A datastore made with another tokenizer raises ConfigError."""

    draws: Draws | None = "fixed"

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        datastore: Datastore | None = None,  # in place of the one at `path`
        *,
        path: Annotated[str | None, Field(description=PATH)] = None,
        num_nodes: Annotated[int, Field(ge=1, le=1024, description=NODES)] = 64,
        max_match: Annotated[int, Field(ge=1, le=64, description=CORPUS_MAX_MATCH)] = 16,
        min_match: Annotated[int, Field(ge=1, le=64, description=CORPUS_MIN_MATCH)] = 2,
        max_occurrences: Annotated[int, Field(ge=1, le=100_000, description=OCCURRENCES)] = 5000,
    ) -> None:
        super().__init__()
        check_matches(max_match, min_match)
        if datastore is None:
            datastore, self.name = model_for(models.target, Datastore, path)
            self.revision = datastore.digest
        self.datastore, self.max_nodes = datastore, num_nodes
        self.max_match, self.min_match, self.max_occurrences = max_match, min_match, max_occurrences
        self.eos_token_ids = models.target.eos_token_ids

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        return super().propose(ids, num_draft_tokens, generator) if num_draft_tokens else Proposal()

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], list[int]]:
        rows = self.datastore.continuations(
            ids[-self.max_match :], self.max_match, self.min_match, num_draft_tokens, self.max_occurrences
        )
        assert self.max_nodes is not None
        return most_frequent_tree(rows, self.datastore.vocab_size, self.eos_token_ids, self.max_nodes)
