"""Drafters: they propose draft tokens."""

from collections.abc import Callable

import torch

from specbench.decoding.proposal import Draws, Proposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.models.scoring import Output, ScoringModel
from specbench.models.timing import PassLog, Stopwatch

SHORTEST = 8  # tokens: shorter passes over trees cost as much


class Drafter:
    """Proposes draft tokens for a sequence and owns all of its state.

    `model` is the draft model. `passes` logs its passes, or the look-ups of a drafter without a model. `tokenizing` is
    the time that the drafter spends in tokenizers. `sampling` holds the parameters it draws with. Each is None if the
    drafter has none. `hidden_layers` are the target's layers whose hidden states `observe` receives, numbered as in
    transformers' `hidden_states`.
    """

    name: str | None = None  # of the drafter's own data or weights, which are part of a run's identity
    revision: str | None = None
    model: ScoringModel | None = None
    passes: PassLog | None = None
    tokenizing: Stopwatch | None = None
    sampling: Sampling | None = None
    hidden_layers: tuple[int, ...] = ()
    draws: Draws | None = None  # of a drafter that proposes trees
    learns_over_prompts: bool = False  # whether the speed of a prompt depends on the prompts before it

    def rehearse(self, decode: Callable[[], object]) -> None:
        """Called before the clock starts. A drafter that needs the target's tokens in advance calls `decode`."""

    def reserve(self, num_draft_tokens: int) -> tuple[int, float]:
        """Prepares drafts of `num_draft_tokens` tokens before anything is measured.

        Returns the number of CUDA graphs that it recorded and the seconds that the recording took.
        """
        return 0, 0.0

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        """Returns the lengths, in tokens, for which the target's passes over its trees are prepared: a tree of up to
        `num_draft_tokens` levels and the token before it. A shorter tree is padded to the next length."""
        return ()

    def level_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        """Returns the same for the passes of `model` over parts of its trees."""
        return ()

    def begin_cell(self) -> None:
        """Called after the warm-up of each subset of a task. A drafter that learns from one prompt to the next forgets
        everything here (see `learns_over_prompts`)."""

    def prefill(self, prompt_ids: list[int]) -> None:
        """Forgets the last sequence and reads a new prompt, before the decode clock starts."""
        raise NotImplementedError

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        """Returns at most `num_draft_tokens` tokens that may follow `ids`."""
        raise NotImplementedError

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        """Called after each target pass with the target's output, for drafters that use what it computed or accepted.

        The first pass is that of the prompt: its proposal is empty, and its next token is the first of the answer.
        """


def padded_lengths(num_nodes: int) -> tuple[int, ...]:
    """Returns the lengths of passes over trees whose size varies up to `num_nodes` nodes: the longest, and shorter ones
    of half the length, so that less than half of a pass is padding."""
    longest = num_nodes + 1
    return tuple(-(-longest // divisor) for divisor in (1, 2, 4) if longest // divisor >= SHORTEST or divisor == 1)
