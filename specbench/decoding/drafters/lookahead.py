"""Drafters without a model that propose trees of tokens which the target's own passes computed."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field

from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import COLD, Drafter, LookUpDrafter
from specbench.decoding.proposal import Draws, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Sampling, most_probable
from specbench.decoding.tree_shape import (
    DEPTH,
    USUAL_CHANCES,
    NumNodes,
    RankChances,
    TreeShape,
    best_shape,
    check_chances,
    fill_shape,
)
from specbench.models.causal_lm import ModelPair
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output

MAX_GUESS = 64  # tokens of a draft at most


def largest_tree(*, window: int, ngram: int, guesses: int) -> TreeShape:
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


@DRAFTERS.register("lookahead", looks_up=True, tree_shape=largest_tree)
class Lookahead(Drafter):
    """The target guesses n-grams with spare computation of its own passes and verifies them in later ones
    (arXiv:2402.02057). Needs no model; a pass reads up to 1 + (ngram − 1) · (window + guesses) tokens."""

    # Each pass also reads a window of `width` columns and n − 1 levels of guessed tokens. The token of level j and
    # column i attends to the sequence, to the first i + 1 tokens of level 0, and to its own column above it. The window
    # is part of the tree, but none of its tokens can be accepted. The most probable tokens after the last level form
    # the next level, and each column with its next token is an n-gram for the pool, which keeps the newest
    # `num_guesses` n-grams per first token. Window and pool are new for each prompt. Columns beyond the target's
    # `context_limit` are dropped.

    draws: Draws | None = "fixed"

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        window: Annotated[int, Field(ge=1, le=256, description="The number of columns of guessed tokens.")] = 7,
        ngram: Annotated[
            int, Field(ge=2, le=32, description="The number of tokens of an n-gram, its first included.")
        ] = 5,
        guesses: Annotated[int, Field(ge=1, le=256, description="The number of n-grams kept per first token.")] = 7,
    ) -> None:
        super().__init__()
        self.width, self.size, self.num_guesses = window, ngram, guesses
        self.max_nodes = (ngram - 1) * (window + guesses)
        self.eos_token_ids = models.target.eos_token_ids
        self.context_limit = models.target.context_limit
        self.passes: PassLog = PassLog(Clock(torch.device("cpu")))
        self._levels: list[list[int]] = []
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}  # n-grams by first token, the newest last

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


def jacobi_drawing(**options: object) -> tuple[tuple[str, ...], str]:
    return (
        "draft           a b c d      the target's most probable token after each:",
        "text            a x y z w    a stands, and x, its own token, is emitted",
        "next draft          z w .    what it found after b and c and d, filled up",
    ), (
        "The target's most probable tokens after the rejected draft tokens are the next draft, although each was "
        "computed after a wrong token: the iteration of Jacobi. What it lacks at its end is its last token again."
    )


@DRAFTERS.register("jacobi", looks_up=True, drawing=jacobi_drawing)
class Jacobi(LookUpDrafter):
    """Drafts the tokens that the target found most probable when it read the last draft, although after other tokens:
    parallel decoding by Jacobi's iteration (arXiv:2305.10427). Needs no model; a draft is always as long as may be."""

    # The first draft of a prompt repeats the prompt's last tokens. Row i of a pass is the token after draft token i, so
    # that after k accepted tokens and the target's own, the rows from k + 1 on guess what follows.

    def __init__(self, models: ModelPair, sampling: Sampling) -> None:
        super().__init__()
        self.eos_token_ids = models.target.eos_token_ids
        self._guess: list[int] = []

    def prefill(self, prompt_ids: list[int]) -> None:
        self._guess = prompt_ids[-MAX_GUESS:]

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], None]:
        lacking = num_draft_tokens - len(self._guess)
        filled = [*self._guess, *([self._guess[-1] if self._guess else ids[-1]] * lacking)][:num_draft_tokens]
        return next((filled[: n + 1] for n, token in enumerate(filled) if token in self.eos_token_ids), filled), None

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        if proposal.token_ids:
            best: list[int] = most_probable(output.logits).tolist()
            self._guess = best[verification.num_accepted + 1 :]


MEMORY = (
    "prompt: the remembered tokens are forgotten before each prompt; run: they are kept for all prompts of a task's "
    "subset, so that a prompt's speed depends on the prompts before it; a resumed run begins with an empty memory. The "
    "published code keeps them over all prompts."
)


def as_run(memory: object) -> object:
    return "run" if memory == "cell" else memory  # the word of earlier versions


def recycling_shape(*, num_nodes: int, depth: int, rank_chances: Sequence[float], **others: Any) -> TreeShape:
    return best_shape(check_chances(rank_chances), num_nodes, depth)


@DRAFTERS.register("token_recycling", looks_up=True, tree_shape=recycling_shape)
class TokenRecycling(LookUpDrafter):
    """A tree of the tokens that the target thought most probable when it last read each token (arXiv:2408.08696). Needs
    no model and no training."""

    draws: Draws | None = "fixed"

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        num_nodes: NumNodes = 80,
        depth: Annotated[int, Field(ge=1, le=16, description=DEPTH)] = 6,
        rank_chances: RankChances = USUAL_CHANCES,
        memory: Annotated[Literal["prompt", "run"], BeforeValidator(as_run), Field(description=MEMORY)] = "prompt",
    ) -> None:
        super().__init__()
        self.shape = recycling_shape(num_nodes=num_nodes, depth=depth, rank_chances=rank_chances)
        self.max_nodes, self.num_ranks = len(self.shape.parents), len(rank_chances)
        self.eos_token_ids = models.target.eos_token_ids
        self.keeps_memory = self.learns_over_prompts = memory == "run"
        self.memory_kind = COLD
        self._followers: dict[int, list[int]] = {}
        self._last_token = -1

    def begin_cell(self) -> None:
        self._followers = {}

    def prefill(self, prompt_ids: list[int]) -> None:
        if not self.keeps_memory:
            self._followers = {}
        self._last_token = prompt_ids[-1]

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], list[int]]:
        self._last_token = ids[-1]

        def follower(token: int, depth: int, rank: int) -> int | None:
            return next(iter(self._followers.get(token, [])[rank:]), None)

        return fill_shape(self.shape, num_draft_tokens, ids[-1], self.eos_token_ids, follower)

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        num_ranks = min(self.num_ranks, output.logits.shape[-1])
        best: list[list[int]] = output.logits.topk(num_ranks, dim=-1).indices.tolist()
        self._followers.update(zip([self._last_token, *proposal.token_ids], best, strict=True))
