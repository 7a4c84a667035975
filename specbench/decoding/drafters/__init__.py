"""Drafters: they propose draft tokens."""

from collections.abc import Callable

import torch

from specbench.decoding.proposal import Draws, Proposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.models.meters import PassLog, Stopwatch
from specbench.models.scoring import Output, ScoringModel

SHORTEST = 8  # tokens; passes over smaller trees are not faster


class Drafter:
    """Proposes draft tokens for a sequence and owns all of its state.

    `model` is the draft model. `passes` logs its passes, or the look-ups of a drafter without a model. `tokenizing` is
    the time that the drafter spends in tokenizers. `sampling` holds the parameters for its draws. Each is None if the
    drafter has none. `hidden_layers` are the target's layers whose hidden states `observe` receives, numbered as in
    transformers' `hidden_states`. `name` and `revision` identify the drafter's own data or weights in a run's identity.
    """

    name: str | None = None
    revision: str | None = None
    model: ScoringModel | None = None
    passes: PassLog | None = None
    tokenizing: Stopwatch | None = None
    sampling: Sampling | None = None
    hidden_layers: tuple[int, ...] = ()
    draws: Draws | None = None  # None for a drafter that proposes no trees
    learns_over_prompts: bool = False  # whether the speed of a prompt depends on the prompts before it

    def rehearse(self, decode: Callable[[], object]) -> None:
        """Called before the clock starts. A drafter that needs the target's tokens in advance calls `decode`."""

    def reserve(self, num_draft_tokens: int) -> tuple[int, float]:
        """Prepares drafts of `num_draft_tokens` tokens before anything is measured.

        Returns the number of CUDA graphs that it recorded and the seconds that the recording took.
        """
        return 0, 0.0

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        """Returns the lengths, in tokens, for which the target's passes over the drafter's trees are prepared. A pass
        reads a tree of up to `num_draft_tokens` levels and the token before it, padded to the next length."""
        return ()

    def level_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        """Returns the lengths for which the passes of `model` over parts of the drafter's trees are prepared."""
        return ()

    def begin_cell(self) -> None:
        """Called after the warm-up of each subset of a task. A drafter that `learns_over_prompts` forgets everything
        here."""

    def prefill(self, prompt_ids: list[int]) -> None:
        """Drops the last sequence and reads a new prompt, before the decode clock starts."""
        raise NotImplementedError

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        """Returns at most `num_draft_tokens` tokens that may follow `ids`."""
        raise NotImplementedError

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        """Called after each target pass with the target's output, for drafters that use what it computed or accepted.

        The first pass is over the prompt: its proposal is empty, and its next token is the first token of the answer.
        """


def padded_lengths(num_nodes: int) -> tuple[int, ...]:
    """Returns the lengths of passes over trees of up to `num_nodes` nodes: the maximum and, for smaller trees, a half
    and a quarter of it, so that less than half of a pass is padding."""
    longest = num_nodes + 1
    return tuple(-(-longest // divisor) for divisor in (1, 2, 4) if longest // divisor >= SHORTEST or divisor == 1)
