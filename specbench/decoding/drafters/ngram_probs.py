"""What an n-gram model's drafts were drawn from, in the form that verification rules ask for."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from specbench.decoding.sampling import Sampling, residual
from specbench.models.transfer import uploaded
from specbench.ngram.folder import Array
from specbench.ngram.model import NgramModel, Span

RAW = Sampling(temperature=1.0)
MAX_KEPT = 2_000_000  # probabilities, at 12 bytes each


class Row:
    """The distribution after one context: relative frequencies of its continuations, shaped by the sampling."""

    def __init__(self, model: NgramModel, span: Span, sampling: Sampling) -> None:
        self.model, self.span, self.sampling = model, span, sampling

    @property
    def best(self) -> int:
        """The most frequent continuation."""
        return self.model.first(self.span)

    @cached_property
    def probs(self) -> Array:
        """What is drawn from, float32 [n]: the probabilities of the n most frequent continuations."""
        return shape(self.model.at(self.span)[1], self.sampling)

    @cached_property
    def cumulated(self) -> Array:
        cumulated: Array = np.cumsum(self.probs, dtype=np.float64)
        return cumulated

    @property
    def token_ids(self) -> Array:
        """Those continuations: int64 [n]."""
        return self.model.at(self.span)[0][: len(self.probs)].astype(np.int64)

    def draw(self, uniform: float) -> int:
        """The token at which the cumulated probability passes a uniform draw from [0, 1)."""
        place = int(self.cumulated.searchsorted(uniform * self.cumulated[-1], side="right"))
        return int(self.model.at(self.span)[0][place])


def shape(counts: Array, sampling: Sampling) -> Array:
    """What `sampling.process` makes of log counts as logits, for counts [n] that fall: the probabilities that are not
    zero, float32. Falling counts make every truncation a prefix, so that nothing is sorted in the decode loop."""
    if sampling.greedy:
        return np.ones(1, dtype=np.float32)
    if sampling.top_k is not None and sampling.top_k < len(counts):
        counts = counts[: bisect_right(counts.data, -int(counts[sampling.top_k - 1]), key=lambda count: -count)]
    weights: Array = counts.astype(np.float32)
    if sampling.temperature != 1.0:
        weights = np.exp(np.log(weights / weights[0]) / np.float32(sampling.temperature))
    probs: Array = weights / weights.sum()
    if sampling.top_p is not None and sampling.top_p < 1.0:
        mass_before = np.cumsum(probs) - probs
        probs = probs[: max(1, int(mass_before.searchsorted(sampling.top_p)))]
        probs = probs / probs.sum()
    return probs


class Rows:
    """The rows of one sampling; those that were needed last are kept, up to a number of probabilities."""

    def __init__(self, model: NgramModel, sampling: Sampling) -> None:
        self.model, self.sampling = model, sampling
        self._kept: dict[Span, Row] = {}
        self._num_probs = 0

    def after(self, context: Sequence[int]) -> Row:
        """The row of a context."""
        span = self.model.span(context)
        if self.sampling.greedy:
            return Row(self.model, span, self.sampling)
        row = self._kept.pop(span, None)
        if row is None:
            row = Row(self.model, span, self.sampling)
            self._num_probs += len(row.probs)
        self._kept[span] = row  # the last needed is the last of the dictionary
        while self._num_probs > MAX_KEPT and len(self._kept) > 1:
            self._num_probs -= len(self._kept.pop(next(iter(self._kept))).probs)
        return row


class SparseProbs:
    """Draft distributions of which only some tokens have probability; row i for draft token i."""

    def __init__(self, rows: Sequence[Row], vocab_size: int, device: torch.device) -> None:
        self.rows, self.vocab_size, self.device = rows, vocab_size, device
        self.certain = rows[0].sampling.greedy

    @cached_property
    def _numbers(self) -> torch.Tensor:
        """The row of every probability."""
        return self._tensor(np.repeat(np.arange(len(self.rows)), [len(row.probs) for row in self.rows]))

    @cached_property
    def _token_ids(self) -> torch.Tensor:
        return self._tensor(np.concatenate([row.token_ids for row in self.rows]))

    @cached_property
    def _probs(self) -> torch.Tensor:
        return self._tensor(np.concatenate([row.probs for row in self.rows]))

    def _tensor(self, array: Array) -> torch.Tensor:
        return uploaded(torch.from_numpy(array), self.device)

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._sums(self._probs * (self._token_ids == token_ids[self._numbers]))

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor:
        return self._sums(torch.minimum(self._probs, target_probs[self._numbers, self._token_ids]))

    def rest(self, index: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
        own = torch.where(self._numbers == index, self._probs, 0.0)
        return residual(target_probs, torch.zeros_like(target_probs).index_add_(0, self._token_ids, own))

    @property
    def probs(self) -> torch.Tensor:
        """What the draft tokens were drawn from: [num_drafted, vocab]."""
        dense = torch.zeros(len(self.rows), self.vocab_size, device=self.device)
        return dense.index_put_((self._numbers, self._token_ids), self._probs)

    @cached_property
    def raw_probs(self) -> torch.Tensor:
        """The relative frequencies, at temperature 1 and untruncated: [num_drafted, vocab]."""
        raw = [Row(row.model, row.span, RAW) for row in self.rows]
        return SparseProbs(raw, self.vocab_size, self.device).probs

    def _sums(self, values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(self.rows), device=self.device).index_add_(0, self._numbers, values)
