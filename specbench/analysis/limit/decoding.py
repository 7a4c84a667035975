"""Generations through the decode loop: of a model alone, and of a pair whose drafting is timed as a whole."""

from typing import Any

import torch

from specbench.analysis.limit.timings import NUM_DRAFT_TOKENS, NUM_TOKENS, Steps, Timings
from specbench.decoding.drafters import Drafter
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation, decode
from specbench.decoding.proposal import PointMass, Proposal
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import rejection
from specbench.models.causal_lm import CausalLM
from specbench.models.timing import PassLog

GREEDY = Sampling(0.0)


class TimedDrafter:
    """Drafts as any model drafter, and marks the beginning and the end of each draft: passes, draws, and what lies
    between them. Of models with vocabularies of different sizes, tokens that the other one lacks are taken modulo its
    size: which they are changes what is accepted, and no time."""

    def __init__(self, drafter: CausalLM, target: CausalLM) -> None:
        self._drafter = ModelDrafter(drafter, GREEDY)
        self._num_own, self._num_foreign = drafter.vocab_size, target.vocab_size
        self.passes: PassLog | None = drafter.passes
        self._log = drafter.passes
        self._drafts: list[tuple[int, Any, Any]] = []

    def prefill(self, prompt_ids: list[int]) -> None:
        self._drafts.clear()
        self._drafter.prefill(within(prompt_ids, self._num_own))

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        own_ids, mark, num_before = within(ids, self._num_own), self._log.clock.mark, self._log.num_passes
        start = mark()
        proposal = self._drafter.propose(own_ids, num_draft_tokens, generator)
        end = mark()
        if num_draft_tokens == NUM_DRAFT_TOKENS:  # at the end of a generation there are shorter ones
            self._drafts.append((self._log.num_passes - num_before, start, end))
        if self._num_own == self._num_foreign:
            return proposal
        token_ids = within(proposal.token_ids, self._num_foreign)
        return Proposal(token_ids, PointMass(token_ids))

    def seconds_per_token(self) -> float:
        """Of drafting, by all drafts of the generation: a token takes one pass. Call it when passes may be read."""
        seconds = sum(self._log.clock.between(start, end) for _, start, end in self._drafts)
        return seconds / sum(num_passes for num_passes, _, _ in self._drafts)


def within(token_ids: list[int], vocab_size: int) -> list[int]:
    return [token % vocab_size for token in token_ids]


def time_decoding(model: CausalLM, prompt_ids: list[int], into: Timings) -> None:
    """One autoregressive generation."""
    generation = generate(model, NoDrafter(), prompt_ids, 0)
    num_timed = len(generation.token_ids) - 1
    into.per_token.append(generation.decode_seconds / num_timed)
    into.outside_passes.append(outside_passes(generation) / num_timed)


def time_steps(target: CausalLM, drafter: TimedDrafter, prompt_ids: list[int], into: Steps) -> None:
    """One speculative generation."""
    generation = generate(target, drafter, prompt_ids, NUM_DRAFT_TOKENS)
    num_steps = len(generation.steps)
    into.per_draft_token.append(drafter.seconds_per_token())
    into.per_step.append(generation.decode_seconds / num_steps)
    into.outside_passes.append(outside_passes(generation) / num_steps)


def generate(model: CausalLM, drafter: Drafter, prompt_ids: list[int], num_draft_tokens: int) -> Generation:
    """NUM_TOKENS greedy tokens, which no end token stops."""
    return decode(
        model, drafter, rejection, prompt_ids, num_draft_tokens=num_draft_tokens, sampling=GREEDY,
        stop=StopRules(NUM_TOKENS, context_limit=model.context_limit), generator=torch.Generator(device=model.device),
    )  # fmt: skip


def outside_passes(generation: Generation) -> float:
    passes = (*generation.target_passes, *generation.draft_passes)
    return generation.decode_seconds - sum(seconds for _, seconds in passes)
