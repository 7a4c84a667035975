"""Toy models with known tables: the next-token distribution depends on the last two tokens only."""

import itertools
from collections.abc import Sequence

import torch

from specbench.models.timing import Clock, PassLog


class TableModel:
    """Logits from a fixed random table [vocab, vocab, vocab], indexed by the last two tokens."""

    def __init__(self, vocab_size: int, seed: int, spread: float = 1.5, eos_token_ids: Sequence[int] = ()) -> None:
        self.table = spread * torch.randn(
            vocab_size, vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed)
        )
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self.passes = PassLog(Clock(torch.device("cpu")))
        self.query_lengths: list[int] = []
        self._seen: list[int] = []

    def reset(self) -> None:
        self._seen = []

    def score(self, ids: list[int], num_logits: int) -> torch.Tensor:
        shared = next((i for i, (a, b) in enumerate(zip(self._seen, ids, strict=False)) if a != b), None)
        known = min(len(self._seen), len(ids)) if shared is None else shared
        self.query_lengths.append(len(ids) - min(known, len(ids) - num_logits))
        self.passes.add(self.query_lengths[-1], 0.0, 0.0)
        self._seen = list(ids)
        ends = range(len(ids) - num_logits, len(ids))
        return torch.stack([self.table[ids[end - 1] if end else 0, ids[end]] for end in ends])

    def probs(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.softmax(self.table[ids[-2] if len(ids) > 1 else 0, ids[-1]], dim=-1)


def joint(model: TableModel, prompt: Sequence[int], length: int) -> dict[tuple[int, ...], float]:
    """The exact distribution of the next `length` tokens at temperature 1."""
    result = {}
    for tokens in itertools.product(range(model.vocab_size), repeat=length):
        ids, mass = list(prompt), 1.0
        for token in tokens:
            mass *= float(model.probs(ids)[token])
            ids.append(token)
        result[tokens] = mass
    return result
