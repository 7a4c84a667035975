"""Retrieval: a tree of the most frequent continuations of the text's end in a corpus (REST, arXiv:2311.08252)."""

from collections.abc import Collection
from typing import Annotated

import torch
from pydantic import Field

from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import LookUpDrafter, padded_lengths
from specbench.decoding.drafters.ngram import model_for
from specbench.decoding.drafters.prompt_lookup import check_matches
from specbench.decoding.proposal import Draws, Proposal
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.corpus_models import Datastore, most_frequent_tree


class RetrievalDrafter(LookUpDrafter):
    """Looks up the longest suffix of the text that occurs in a datastore, and proposes the most frequent beginnings of
    its continuations as a tree."""

    draws: Draws | None = "fixed"

    def __init__(
        self, datastore: Datastore, eos_token_ids: Collection[int], num_nodes: int, max_match: int, min_match: int,
        max_occurrences: int, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.datastore = datastore
        self.eos_token_ids = eos_token_ids
        self.num_nodes = num_nodes
        self.max_match = max_match
        self.min_match = min_match
        self.max_occurrences = max_occurrences
        self.name = name or str(datastore.path)
        self.revision = datastore.digest

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return padded_lengths(self.num_nodes)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        return super().propose(ids, num_draft_tokens, generator) if num_draft_tokens else Proposal()

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], list[int]]:
        rows = self.datastore.continuations(
            ids[-self.max_match :], self.max_match, self.min_match, num_draft_tokens, self.max_occurrences
        )
        return most_frequent_tree(rows, self.datastore.vocab_size, self.eos_token_ids, self.num_nodes)


MAX_LEVELS = 64  # a continuation may have any length


PATH = "Folder of the datastore, as `specbench train retrieval` writes it; null: the one of the embedded target."
NEEDS = "a datastore of the target's tokens (`specbench train retrieval`; the embedded target brings one)"
NODES = "The number of tokens of a tree at most: the most frequent ones."
MAX_MATCH = "The number of last tokens that are looked up at most."
MIN_MATCH = "The number of last tokens that must occur in the corpus; without them nothing is drafted."
OCCURRENCES = (
    "The number of occurrences whose continuations are counted. If there are more, an evenly spaced sample is counted."
)


@DRAFTERS.register("retrieval", needs=NEEDS, tree_shape=lambda **options: MAX_LEVELS)
def retrieval_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    path: Annotated[str | None, Field(description=PATH)] = None,
    num_nodes: Annotated[int, Field(ge=1, le=1024, description=NODES)] = 64,
    max_match: Annotated[int, Field(ge=1, le=64, description=MAX_MATCH)] = 16,
    min_match: Annotated[int, Field(ge=1, le=64, description=MIN_MATCH)] = 2,
    max_occurrences: Annotated[int, Field(ge=1, le=100_000, description=OCCURRENCES)] = 5000,
) -> RetrievalDrafter:
    """A tree of the most frequent continuations, in a corpus, of the longest suffix of the text that occurs there.
    Needs no model. A datastore made with another tokenizer raises ConfigError."""
    check_matches(max_match, min_match)
    target = models.target
    datastore, name = model_for(target, Datastore, path)
    return RetrievalDrafter(datastore, target.eos_token_ids, num_nodes, max_match, min_match, max_occurrences, name)
