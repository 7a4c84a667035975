"""Logits → next-token distributions, and draws from them. All probabilities are float32."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: temperature 0 is greedy; top-k, then top-p truncate what the temperature shaped."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def draw(self, logits: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One token from each row of logits [num_rows, vocab]: tokens [num_rows], and the probabilities that they were
        drawn from, [num_rows, vocab]; None for greedy ones."""
        distributions = Distributions(logits, self)
        return distributions.draw_all(generator), None if self.greedy else distributions.probs


class Distributions:
    """Next-token distributions of consecutive positions, [num_rows, vocab], each form computed when first asked for."""

    def __init__(self, logits: torch.Tensor, sampling: Sampling, probs: torch.Tensor | None = None) -> None:
        self._logits: torch.Tensor | None = logits
        self._given_probs = probs  # where they are known already
        self._parts: Sequence[Distributions] = ()
        self.sampling = sampling

    @classmethod
    def concat(cls, parts: Sequence["Distributions"]) -> "Distributions":
        """Rows of several distributions below one another; what was drawn from is what is later judged."""
        whole = cls.__new__(cls)
        whole._logits, whole._parts, whole.sampling = None, parts, parts[0].sampling
        whole._given_probs = None
        return whole

    @property
    def logits(self) -> torch.Tensor:
        if self._logits is None:
            self._logits = torch.cat([part.logits for part in self._parts])
        return self._logits

    @property
    def certain(self) -> bool:
        """Whether every row is a point mass."""
        return self.sampling.greedy

    @cached_property
    def probs(self) -> torch.Tensor:
        """After temperature, top-k and top-p; one-hot rows when greedy."""
        if self._parts:
            return torch.cat([part.probs for part in self._parts])
        if self._given_probs is not None:
            return self._given_probs
        return process(self.logits, self.sampling)

    @cached_property
    def raw_probs(self) -> torch.Tensor:
        """The softmax at temperature 1, untruncated."""
        return torch.softmax(self.logits, dim=-1, dtype=torch.float32)

    @cached_property
    def best(self) -> torch.Tensor:
        """The most probable token of each row: [num_rows]."""
        if self._parts:
            return torch.cat([part.best for part in self._parts])
        return self.logits.argmax(dim=-1)

    def draw(self, row: int, generator: torch.Generator) -> int:
        """One token from row `row` of `probs`."""
        return int(self.best[row]) if self.sampling.greedy else draw(self.probs[row], generator)

    def draw_at(self, row: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """One token from the row that a tensor [1] tells: [1]."""
        if self.sampling.greedy:
            return self.best.index_select(0, row)
        return draw_rows(self.probs.index_select(0, row), generator)

    def draw_all(self, generator: torch.Generator) -> torch.Tensor:
        """One token from every row: [num_rows]."""
        return self.best if self.sampling.greedy else draw_rows(self.probs, generator)

    # What a proposal is asked for by the rules (see proposal.DraftProbs). Of certain rows the token says it all: nobody
    # needs them one-hot.
    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self.certain:
            return (token_ids == self.best).float()
        return self.probs.gather(1, token_ids[:, None])[:, 0]

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor:
        if self.certain:
            return target_probs.gather(1, self.best[:, None])[:, 0]
        return torch.minimum(self.probs, target_probs).sum(dim=-1)

    def rest(self, index: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
        if self.certain:
            point = torch.zeros_like(target_probs).index_fill_(0, self.best.index_select(0, index), 1.0)
            return residual(target_probs, point)
        return residual(target_probs, self.probs.index_select(0, index)[0])


def process(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities [num_rows, vocab] after temperature, top-k and top-p, each applied once, in this order."""
    if sampling.greedy:
        return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
    scores = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        kth = scores.topk(sampling.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, float("-inf"))
    probs = torch.softmax(scores, dim=-1)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        ordered, order = probs.sort(dim=-1, descending=True)
        mass_before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(mass_before >= sampling.top_p, 0.0)
        probs = torch.zeros_like(probs).scatter(1, order, ordered)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def residual(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """max(p − q, 0), unnormalised, [vocab]; p itself where rounding leaves nothing."""
    rest = (target_probs - draft_probs).clamp_min(0.0)
    return torch.where(rest.any(), rest, target_probs)


def draw(probs: torch.Tensor, generator: torch.Generator) -> int:
    """One token from unnormalised probabilities [vocab]."""
    return int(draw_rows(probs[None], generator))


def draw_rows(probs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One token from each row of unnormalised probabilities: [num_rows, vocab] → [num_rows].

    The draws of torch.multinomial, which on an accelerator would wait for the result to check what it was given.
    """
    return (probs / torch.empty_like(probs).exponential_(1, generator=generator)).argmax(dim=-1)
