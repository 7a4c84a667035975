"""Lookahead decoding: the target's passes also guess n-grams in a window (arXiv:2402.02057)."""

from typing import Annotated

import torch
from pydantic import Field

from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import Drafter, padded_lengths
from specbench.decoding.proposal import Draws, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.decoding.tree_shape import TreeShape
from specbench.models.causal_lm import ModelPair
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output


class Lookahead(Drafter):
    """Proposes n-grams that begin at the last token, from a pool that the target's own passes fill.

    Each pass also reads a window of `width` columns and n − 1 levels of guessed tokens. The token of level j and column
    i attends to the sequence, to the first i + 1 tokens of level 0, and to its own column above it. The window is part
    of the tree, but none of its tokens can be accepted. The most probable tokens after the last level form the next
    level, and each column with its next token is an n-gram for the pool, which keeps the newest `num_guesses` n-grams
    per first token. Window and pool are new for each prompt. Columns beyond the target's `context_limit` are dropped.
    """

    draws: Draws | None = "fixed"

    def __init__(
        self, width: int, size: int, num_guesses: int, eos_token_ids: frozenset[int], context_limit: int | None = None
    ) -> None:
        self.width = width
        self.size = size
        self.num_guesses = num_guesses
        self.eos_token_ids = eos_token_ids
        self.context_limit = context_limit
        self.passes: PassLog = PassLog(Clock(torch.device("cpu")))
        self._levels: list[list[int]] = []
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}  # n-grams by first token, the newest last

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return padded_lengths((self.size - 1) * (self.width + self.num_guesses))

    def prefill(self, prompt_ids: list[int]) -> None:
        self._pool = {}
        self._levels = [[prompt_ids[-1 - column % len(prompt_ids)] for column in range(self.width)]]

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        if not num_draft_tokens:
            return Proposal()
        start = self.passes.clock.mark()
        tokens: list[int] = []
        parents: list[int] = []
        places: dict[tuple[int, int], int] = {}
        for guess in self._pool.get(ids[-1], {}):
            node = -1
            for token in guess[:num_draft_tokens]:
                if (node, token) not in places:
                    places[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = places[node, token]
                if token in self.eos_token_ids:
                    break
        num_candidates = len(tokens)
        if self.context_limit is not None:
            num_columns = max(0, self.context_limit - len(ids) - len(self._levels) + 1)
            self._levels = [level[:num_columns] for level in self._levels]
        for number, level in enumerate(self._levels):
            first = len(tokens)
            above = range(first - len(level), first) if number else [-1, *range(first, first + len(level))]
            parents += above[: len(level)]
            tokens += level
        self.passes.add(num_candidates, start, self.passes.clock.mark())
        return TreeProposal(tokens, parents, num_candidates=num_candidates) if tokens else Proposal()

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        if not isinstance(proposal, TreeProposal):
            return
        first_newest = len(output.logits) - len(self._levels[-1])
        newest: list[int] = output.logits[first_newest:].argmax(dim=-1).tolist()
        if len(self._levels) < self.size - 1:
            self._levels.append(newest)
            return
        for first, *others in zip(*self._levels, newest, strict=True):
            grams = self._pool.setdefault(first, {})
            grams.pop(tuple(others), None)
            grams[tuple(others)] = None
            if len(grams) > self.num_guesses:
                del grams[next(iter(grams))]
        self._levels = [*self._levels[1:], newest]


def largest_tree(*, window: int = 7, ngram: int = 5, guesses: int = 7) -> TreeShape:
    """Returns the largest tree: all guesses, with different first tokens, and the window with rank −1."""
    parents: list[int] = []
    for _ in range(guesses):
        parents += [-1, *range(len(parents), len(parents) + ngram - 2)]
    num_guessed = len(parents)
    for level in range(ngram - 1):
        first = len(parents)
        parents += range(first - window, first) if level else [-1, *range(first, first + window - 1)]
    ranks = [number // (ngram - 1) * (number % (ngram - 1) == 0) for number in range(num_guessed)]
    return TreeShape(tuple(parents), (*ranks, *[-1] * (len(parents) - num_guessed)))


@DRAFTERS.register("lookahead", tree_shape=largest_tree)
def lookahead_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    window: Annotated[int, Field(ge=1, le=256, description="The number of columns of guessed tokens.")] = 7,
    ngram: Annotated[int, Field(ge=2, le=32, description="The number of tokens of an n-gram, its first included.")] = 5,
    guesses: Annotated[int, Field(ge=1, le=256, description="The number of n-grams kept per first token.")] = 7,
) -> Lookahead:
    """The target guesses n-grams with spare computation of its own passes and verifies them in later ones. Needs no
    model; a pass reads up to 1 + (ngram − 1) · (window + guesses) tokens."""
    return Lookahead(window, ngram, guesses, models.target.eos_token_ids, models.target.context_limit)
