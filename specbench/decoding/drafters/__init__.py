"""Drafters: what proposes draft tokens."""

from collections.abc import Callable
from typing import Protocol

import torch

from specbench.core.registry import DRAFTERS, Factory
from specbench.decoding.proposal import Proposal
from specbench.models.timing import PassLog


class Drafter(Protocol):
    """Proposes draft tokens for a sequence; owns all of its state."""

    passes: PassLog | None

    def prefill(self, prompt_ids: list[int]) -> None:
        """Forget the last sequence and read a new prompt; runs before the decode clock starts."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        """At most `num_draft_tokens` tokens that may follow `ids`."""


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
