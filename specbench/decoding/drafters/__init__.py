"""Drafters: they propose draft tokens. Here are their base classes and the one that drafts nothing."""

from collections.abc import Callable
from typing import Any

import torch

from specbench.core.registry import DRAFTERS
from specbench.decoding.proposal import Draws, PointMass, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.models.meters import Clock, PassLog, Stopwatch
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

    def __init__(self, model: ScoringModel | None = None, sampling: Sampling | None = None) -> None:
        self.model = model
        self.sampling = sampling
        self.passes = None if model is None else model.passes

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
        """Drops the last sequence and reads a new prompt, before the decode clock starts. By default, only the draft
        model, if there is one, does so."""
        if self.model is not None:
            self.model.reset()
            self.model.score(prompt_ids, 1)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        """Returns at most `num_draft_tokens` tokens that may follow `ids`."""
        raise NotImplementedError

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        """Called after each target pass with the target's output, for drafters that use what it computed or accepted.

        The first pass is over the prompt: its proposal is empty, and its next token is the first token of the answer.
        """


EMPTY = Proposal()


@DRAFTERS.register("none", provides={"probs"})
class NoDrafter(Drafter):
    """Drafts nothing: every step is one target pass over one token."""

    def __init__(self, models: Any = None, sampling: Sampling | None = None) -> None:
        super().__init__()

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        return EMPTY


class LookUpDrafter(Drafter):
    """A drafter without a model: every proposal is one look-up, logged as a pass with its number of draft tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: PassLog = PassLog(Clock(torch.device("cpu")))

    def look_up(self, ids: list[int], num_draft_tokens: int) -> tuple[list[int], list[int] | None]:
        """Returns at most `num_draft_tokens` levels of tokens that may follow `ids`, and their parents; None for a
        chain."""
        raise NotImplementedError

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        start = self.passes.clock.mark()
        token_ids, parents = self.look_up(ids, num_draft_tokens)
        self.passes.add(len(token_ids), start, self.passes.clock.mark())
        if not token_ids:
            return Proposal()
        return Proposal(token_ids, PointMass(token_ids)) if parents is None else TreeProposal(token_ids, parents)


def padded_lengths(num_nodes: int) -> tuple[int, ...]:
    """Returns the lengths of passes over trees of up to `num_nodes` nodes: the maximum and, for smaller trees, a half
    and a quarter of it, so that less than half of a pass is padding."""
    longest = num_nodes + 1
    return tuple(-(-longest // divisor) for divisor in (1, 2, 4) if longest // divisor >= SHORTEST or divisor == 1)
