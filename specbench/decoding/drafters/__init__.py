"""Drafters: what proposes draft tokens."""

from collections.abc import Callable

import torch

from specbench.core.registry import DRAFTERS, Factory
from specbench.decoding.proposal import Proposal, Verdict
from specbench.decoding.sampling import Sampling
from specbench.models.timing import PassLog, Stopwatch


class Drafter:
    """Proposes draft tokens for a sequence and owns all of its state.

    `passes` logs the draft model's passes, or the look-ups of a drafter without a model; `tokenizing` is the time that
    it spends in tokenizers; `sampling` is how it draws where that differs from the run. Each is None if there is none.
    """

    name: str | None = None  # of data or weights of its own, which a run's identity holds
    revision: str | None = None
    passes: PassLog | None = None
    tokenizing: Stopwatch | None = None
    sampling: Sampling | None = None

    def rehearse(self, decode: Callable[[], object]) -> None:
        """Called before the clock starts. A drafter that must know the target's tokens calls `decode` to see them."""

    def prefill(self, prompt_ids: list[int]) -> None:
        """Forgets the last sequence and reads a new prompt, before the decode clock starts."""
        raise NotImplementedError

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        """Returns at most `num_draft_tokens` tokens that may follow `ids`."""
        raise NotImplementedError

    def observe(self, proposal: Proposal, verdict: Verdict) -> None:
        """Called after each step, for drafters that learn from what the target accepted."""


def drafter(
    name: str, *, provides: frozenset[str], needs_model: bool, needs: str | None = None, prescribes: str | None = None
) -> Callable[[Factory], Factory]:
    """Register a drafter factory with what the composition check needs to know; `needs`: what else a user must have, in
    words; `prescribes`: the rule whose acceptance rate is set and not measured."""

    def add(factory: Factory) -> Factory:
        factory.provides = provides  # type: ignore[attr-defined]
        factory.needs_model = needs_model  # type: ignore[attr-defined]
        factory.needs = needs  # type: ignore[attr-defined]
        factory.prescribes = prescribes  # type: ignore[attr-defined]
        return DRAFTERS.register(name)(factory)

    return add
