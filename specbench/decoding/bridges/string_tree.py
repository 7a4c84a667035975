"""The draft model's distributions after one context and its continuations. Each is computed once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from specbench.core.errors import ConfigError
from specbench.decoding.sampling import Distributions, Sampling
from specbench.models.causal_lm import CausalLM
from specbench.models.eager import common_prefix

Suffix = tuple[int, ...]  # draft tokens after the context of a tree


@dataclass
class PassBudget:
    """The number of contexts that the draft model may read in one step; each context of a batch counts."""

    max_draft_passes: int
    num_passes: int = 0

    def spend(self, num_passes: int, written: bytes) -> None:
        """Counts passes. Raises ConfigError beyond the cap, with the token `written` (b"": all tokens)."""
        self.num_passes += num_passes
        if self.num_passes > self.max_draft_passes:
            tokens = f"the token {written.decode(errors='replace')!r}" if written else "all tokens"
            raise ConfigError(
                f"bridge 'string' (method slrs): the probability of {tokens} needs more than bridge.max_draft_passes = "
                f"{self.max_draft_passes} draft passes in one step: raise the cap, set generation.top_k, or use a "
                "drafter with shorter tokens (bytes)"
            )


class DraftDistribution:
    """One next-token distribution of the draft model; `order` is a permutation of its vocabulary."""

    def __init__(self, distributions: Distributions, index: int, order: NDArray[np.int64]) -> None:
        self._distributions = distributions
        self._index = index
        self._order = order

    def draw(self, generator: torch.Generator) -> int:
        return self._distributions.draw(self._index, generator)

    @cached_property
    def sums(self) -> NDArray[np.float64]:
        """Cumulative probabilities in the given order, from 0 to 1: [vocab + 1]."""
        probs = self._distributions.probs[self._index].cpu().numpy().astype(np.float64)
        sums = np.concatenate([[0.0], np.cumsum(probs[self._order])])
        whole: NDArray[np.float64] = sums / sums[-1]
        return whole


class DraftTree:
    """The continuations of one context that the draft model has read, with their next-token distributions."""

    def __init__(
        self, model: CausalLM, sampling: Sampling, order: NDArray[np.int64], context: list[int], budget: PassBudget
    ) -> None:
        self.context = context
        self._model = model
        self._sampling = sampling
        self._order = order
        self.budget = budget
        self._rows: dict[Suffix, DraftDistribution] = {}

    def known(self, suffix: Suffix) -> DraftDistribution | None:
        return self._rows.get(suffix)

    def row(self, suffix: Suffix, written: bytes) -> DraftDistribution:
        return self.rows([suffix], written)[0]

    def rows(self, suffixes: Sequence[Suffix], written: bytes) -> list[DraftDistribution]:
        """Returns the distributions after suffixes of equal length; computes missing ones in one batch. Raises
        ConfigError, with the token `written`, if the budget is spent."""
        missing = [suffix for suffix in dict.fromkeys(suffixes) if suffix not in self._rows]
        if missing:
            self.budget.spend(len(missing), written)
            self._keep(missing, self._logits(missing))
        return [self._rows[suffix] for suffix in suffixes]

    def read_along(self, suffix: Suffix, shortest: int, written: bytes) -> None:
        """Reads `suffix` in one pass and keeps the distributions after its prefixes of at least `shortest` tokens."""
        beginnings = [suffix[:length] for length in range(shortest, len(suffix) + 1)]
        self.budget.spend(len(beginnings), written)
        self._keep(beginnings, self._model.score(self.context + list(suffix), len(beginnings)).logits)

    def _logits(self, suffixes: list[Suffix]) -> torch.Tensor:
        if len(suffixes) == 1:
            return self._model.score(self.context + list(suffixes[0]), 1).logits
        lists = [list(suffix) for suffix in suffixes]
        shared = common_prefix(min(lists), max(lists))
        return self._model.score_batch(self.context + lists[0][:shared], [ids[shared:] for ids in lists])

    def _keep(self, suffixes: list[Suffix], logits: torch.Tensor) -> None:
        distributions = Distributions(logits, self._sampling)
        for index, suffix in enumerate(suffixes):
            self._rows[suffix] = DraftDistribution(distributions, index, self._order)
