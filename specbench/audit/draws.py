"""Many draws of a few tokens from fixed prompts, by any decoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from specbench.audit.exact import Tokens
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation
from specbench.decoding.proposal import Proposal, Step, Verdict
from specbench.decoding.sampling import Distributions

NUM_TOKENS = 5  # one from the prefill, three draft tokens and a bonus token


class Generates(Protocol):
    """All that the audit asks of a method: running.compose.Decoder, or anything that decodes in its stead."""

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> Generation:
        """Decode one prompt with the random stream of `seed`."""


@dataclass
class Draws:
    """The drawn tokens per prompt, and what the steps were; the counts stay null for a decoder without steps."""

    sequences: list[list[Tokens]]
    num_drafted: int | None = None
    num_accepted: int | None = None
    num_recovered: int | None = None
    num_bonus: int | None = None

    def count(self, step: Step) -> None:
        """Add one step. A step that the end of the text cut has neither a recovered nor a bonus token."""
        self.num_drafted = (self.num_drafted or 0) + step.num_drafted
        self.num_accepted = (self.num_accepted or 0) + step.num_accepted
        is_whole = step.num_drafted > 0 and step.num_emitted == step.num_accepted + 1
        all_accepted = step.num_accepted == step.num_drafted
        self.num_recovered = (self.num_recovered or 0) + int(is_whole and not all_accepted)
        self.num_bonus = (self.num_bonus or 0) + int(is_whole and all_accepted)


def draw_many(
    decoder: Generates,
    prompts: Sequence[list[int]],
    stop: StopRules,
    num_draws: int,
    seed_of: Callable[[int, int], int],
) -> Draws:
    """`num_draws` draws, shared out evenly among the prompts; `seed_of` (prompt, draw) gives each its random stream."""
    stop = replace(stop, max_new_tokens=NUM_TOKENS, stop_strings=())
    draws = Draws([[] for _ in prompts])
    for draw in range(num_draws):
        number = draw % len(prompts)
        generation = decoder.generate(prompts[number], stop, seed_of(number, draw))
        draws.sequences[number].append(tuple(generation.token_ids))
        for step in generation.steps:
            draws.count(step)
    return draws


def accept_everything(proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verdict:
    """A wrong rule, as a control: every draft token stands, the next one is drawn from the target."""
    return Verdict(proposal.num_drafted, target.draw(proposal.num_drafted, generator))
