"""Random draft trees, and what reads hidden states."""

import random

import torch

from specbench.decoding.drafters import Drafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import Proposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import exact_match
from specbench.models.scoring import Output, ScoringModel

CLOSE = {"atol": 2e-4, "rtol": 1e-3}
NO_SDPA = ("gemma2", "sdpa")


def random_tree(rng: random.Random, num_nodes: int, vocab_size: int) -> tuple[list[int], list[int]]:
    """Returns tokens and parents; siblings differ."""
    parents = [rng.randrange(-1, index) for index in range(num_nodes)]
    used: set[tuple[int, int]] = set()
    tokens: list[int] = []
    for parent in parents:
        token = rng.choice([token for token in range(vocab_size) if (parent, token) not in used])
        used.add((parent, token))
        tokens.append(token)
    return tokens, parents


def generated(target: ScoringModel, drafter: Drafter, length: int, seed: int, temperature: float) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return decode(
        target, drafter, exact_match, [1, 2], num_draft_tokens=4, sampling=Sampling(temperature),
        stop=StopRules(length), generator=generator,
    ).token_ids  # fmt: skip


class HiddenReader(Drafter):
    """Proposes nothing; keeps the target's output of every pass."""

    hidden_layers = (1, 4)

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, Output]] = []

    def prefill(self, prompt_ids: list[int]) -> None:
        self.seen = []

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        return Proposal(ids[-1:] * min(num_draft_tokens, 2))

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        self.seen.append((proposal.num_drafted, verification.next_token, output))
