"""Next-token distributions from logits, and draws from them. All probabilities are float32."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters. Temperature 0 is greedy; top-k, then top-p are applied after the temperature."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def at(self, temperature: float | None) -> "Sampling":
        """Returns these parameters with another temperature; None keeps it."""
        return self if temperature is None else replace(self, temperature=temperature)

    def draw(self, logits: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draws one token from each row of logits [num_rows, vocab].

        Returns the tokens, [num_rows], and the probabilities that they were drawn from, [num_rows, vocab]; None when
        greedy.
        """
        distributions = Distributions(logits, self)
        return distributions.draw_all(generator), None if self.greedy else distributions.probs


class DraftProbs:
    """The draft distributions of a proposal: row i is the distribution of draft token i. A row may sum to less than 1.

    Subclasses define `residual` if they can compute the residual distribution. Subclasses that compute single
    probabilities on demand set `residual_is_sampled` and define `sample_residual`.
    """

    is_one_hot: bool = False  # whether every row is one-hot at the drafted token
    residual_is_sampled: bool = False
    withholds_end: bool = False  # whether a drafted end token is left out of the proposal

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Returns q_i(x_i) of the draft tokens: [num_drafted] → [num_drafted]."""
        raise NotImplementedError

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor | None:
        """Returns Σ_x min(p_i(x), q_i(x)) of each row, [num_drafted, vocab] → [num_drafted]; None if unknown."""
        raise NotImplementedError

    def residual(self, index: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
        """Returns max(p − q_i, 0), unnormalised, [vocab], given i as [1] and p as [vocab]."""
        raise NotImplementedError

    def sample_residual(self, index: int, target_probs: torch.Tensor, generator: torch.Generator) -> int:
        """Draws one token from norm(max(p − q_i, 0)), given p as [vocab]."""
        raise NotImplementedError

    def draw_overlap(self, overlap: torch.Tensor, target: "Distributions") -> torch.Tensor | None:
        """Returns, for each position at which the drafter drew, the probability that a draft token is drawn and
        accepted: [num_drafted] → [num_drafted] or [num_drafted + 1]; None unless `withholds_end`."""
        return None


class DenseProbs(DraftProbs):
    """Draft distributions over the whole vocabulary, [num_drafted, vocab], for rules that compare distributions.

    The draft tokens were drawn from `probs`; `raw_probs` are at temperature 1 without truncation.
    """

    @property
    def probs(self) -> torch.Tensor:
        """The probabilities that the draft tokens were drawn from."""
        raise NotImplementedError

    @property
    def raw_probs(self) -> torch.Tensor:
        """The softmax at temperature 1, untruncated."""
        raise NotImplementedError

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        # The value for a token outside of the vocabulary (−1) is arbitrary: its p is 0, so it is rejected for every q.
        return self.probs.gather(1, token_ids.clamp_min(0)[:, None])[:, 0]

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor | None:
        return torch.minimum(self.probs, target_probs).sum(dim=-1)

    def residual(self, index: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
        return residual(target_probs, self.probs.index_select(0, index)[0])


class Distributions(DenseProbs):
    """Next-token distributions of consecutive positions, [num_rows, vocab], computed on first use."""

    def __init__(
        self, logits: torch.Tensor | None, sampling: Sampling, probs: torch.Tensor | None = None,
        parts: Sequence["Distributions"] = (),
    ) -> None:  # fmt: skip
        self.is_one_hot = sampling.greedy
        self._logits = logits
        self._given_probs = probs  # spares the computation from the logits
        self._parts = parts
        self.sampling = sampling

    @classmethod
    def concat(cls, parts: Sequence["Distributions"]) -> "Distributions":
        """Concatenates the rows of several distributions. Probabilities that exist are not computed again."""
        return cls(None, parts[0].sampling, parts=parts)

    @property
    def logits(self) -> torch.Tensor:
        if self._logits is None:
            self._logits = torch.cat([part.logits for part in self._parts])
        return self._logits

    @cached_property
    def probs(self) -> torch.Tensor:
        """The probabilities after temperature, top-k and top-p; one-hot rows when greedy."""
        if self._parts:
            return torch.cat([part.probs for part in self._parts])
        if self._given_probs is not None:
            return self._given_probs
        return process(self.logits, self.sampling)

    @cached_property
    def raw_probs(self) -> torch.Tensor:
        return torch.softmax(self.logits, dim=-1, dtype=torch.float32)

    @cached_property
    def best(self) -> torch.Tensor:
        """The most probable token of each row: [num_rows]."""
        if self._parts:
            return torch.cat([part.best for part in self._parts])
        return most_probable(self.logits)

    def draw(self, row: int, generator: torch.Generator) -> int:
        """Draws one token from row `row` of `probs`."""
        return int(self.best[row]) if self.sampling.greedy else draw(self.probs[row], generator)

    def draw_at(self, row: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draws one token, [1], from the row whose index is the tensor `row`, [1]."""
        if self.sampling.greedy:
            return self.best.index_select(0, row)
        return draw_rows(self.probs.index_select(0, row), generator)

    def draw_all(self, generator: torch.Generator) -> torch.Tensor:
        """Draws one token from every row: [num_rows]."""
        return self.best if self.sampling.greedy else draw_rows(self.probs, generator)

    # Greedy rows are compared by their token, which avoids one-hot rows over the whole vocabulary.
    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self.is_one_hot:
            return (token_ids == self.best).float()
        return super().token_probs(token_ids)

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor | None:
        if self.is_one_hot:
            return target_probs.gather(1, self.best[:, None])[:, 0]
        return super().overlap(target_probs)

    def residual(self, index: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
        if self.is_one_hot:
            point = torch.zeros_like(target_probs).index_fill_(0, self.best.index_select(0, index), 1.0)
            return residual(target_probs, point)
        return super().residual(index, target_probs)


def most_probable(logits: torch.Tensor) -> torch.Tensor:
    """Returns the most probable token of each row, [num_rows]; of equal ones the first. On a CPU torch compares float32
    several at once, and bfloat16, whose values float32 has too, one at a time."""
    return (logits.float() if logits.device.type == "cpu" else logits).argmax(dim=-1)


def process(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Returns probabilities [num_rows, vocab] after temperature, top-k and top-p, applied once each in this order."""
    if sampling.greedy:
        return torch.nn.functional.one_hot(most_probable(logits), logits.shape[-1]).float()
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
    """Returns max(p − q, 0), unnormalised, [vocab]; p itself if rounding makes the residual zero everywhere."""
    rest = (target_probs - draft_probs).clamp_min(0.0)
    return torch.where(rest.any(), rest, target_probs)


def in_double(probs: torch.Tensor) -> torch.Tensor:
    """Returns probabilities in float64, on the CPU if their device does not support it."""
    return (probs.cpu() if probs.device.type == "mps" else probs).double()


def draw(probs: torch.Tensor, generator: torch.Generator) -> int:
    """Draws one token from unnormalised probabilities [vocab]."""
    return int(draw_rows(probs[None], generator))


def draw_rows(probs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draws one token from each row of unnormalised probabilities: [num_rows, vocab] → [num_rows].

    The draws equal those of torch.multinomial, but without its check of the input, which would make the host wait for
    the accelerator.
    """
    return (probs / torch.empty_like(probs).exponential_(1, generator=generator)).argmax(dim=-1)


def entropies(probs: torch.Tensor) -> torch.Tensor:
    """Returns the entropy of each distribution in nats: [..., vocab_size] → [...]."""
    found: torch.Tensor = torch.special.entr(probs).sum(-1)
    return found
