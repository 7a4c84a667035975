"""Drafts several tokens with one CUDA graph, which contains the one-token passes and the draws between them."""

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

import torch

from specbench.models.recording import SharedStream, record_graph
from specbench.models.scoring import Output


class Sampler(Hashable, Protocol):
    """A way of drawing tokens, such as decoding.sampling.Sampling."""

    def draw(self, logits: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draws one token from each row of logits [num_rows, vocab]. Returns tokens [num_rows] and the probabilities
        that they were drawn from, [num_rows, vocab], or None for one-hot distributions."""


class Draft(NamedTuple):
    """Draft tokens on the device: tokens [n], logits [n, vocab], and the probabilities that they were drawn from,
    [n, vocab] (None for one-hot distributions)."""

    tokens: torch.Tensor
    logits: torch.Tensor
    probs: torch.Tensor | None


class RecordedDraft:
    """A recorded draft of `num_tokens` tokens. The first pass reads `tokens` [1, num_read] at position `start`; each
    later pass reads the previously drafted token. The next draft overwrites the buffers of the results.

    `forwards`: the forward functions of the first and of later passes, from tokens [1, n] at `start` to logits
    [n, output_size].
    """

    def __init__(
        self, forwards: tuple[Callable[..., Output], Callable[..., Output]], tokens: torch.Tensor,
        start: torch.Tensor, stream: SharedStream, num_tokens: int, draw: Sampler, vocab_size: int,
    ) -> None:  # fmt: skip
        self._input, self._start, self._stream, self._draw = tokens, start, stream, draw
        self._vocab_size = vocab_size
        self._drafted = torch.zeros((1, num_tokens), dtype=torch.long, device=start.device)
        self._given = torch.zeros(num_tokens, dtype=torch.long, device=start.device)
        self._is_given = torch.zeros(1, dtype=torch.bool, device=start.device)
        self._reads_given = False  # host copy of `_is_given`
        logits = forwards[0](tokens).logits[-1:, :vocab_size]
        _, probs = draw.draw(logits, stream.generator)
        self._logits = torch.zeros((num_tokens, vocab_size), dtype=logits.dtype, device=start.device)
        self._probs = None if probs is None else torch.zeros_like(self._logits, dtype=probs.dtype)
        self._replay = record_graph(lambda: self._run(*forwards), start.device, stream.generator)

    def run(self, generator: torch.Generator, given: torch.Tensor | None = None) -> Draft:
        """Drafts after the tokens in the input buffer, with random numbers from `generator`. `given` [num_tokens]:
        tokens that replace the drawn tokens."""
        self._stream.join(generator)
        if given is not None:
            self._given.copy_(given)
        if self._reads_given != (given is not None):
            self._reads_given = given is not None
            self._is_given.fill_(self._reads_given)
        self._replay()
        return Draft(self._drafted[0], self._logits, self._probs)

    def differs_from(self, forward: Callable[..., Output], same: Callable[..., bool]) -> bool:
        """Returns whether, on other tokens than when it was recorded, the draft's logits differ from those of separate
        passes of `forward`. `same`: compares two tensors of logits."""
        self._input.copy_(torch.arange(1, self._input.shape[1] + 1, device=self._start.device)[None])
        given = torch.arange(7, 7 + self._given.shape[0], device=self._start.device)
        generator = torch.Generator(device=self._start.device).manual_seed(0)
        found = self.run(generator, given).logits.clone()
        self._run(forward, forward)
        return not same(self._logits, found)

    def _run(self, first_forward: Callable[..., Output], forward: Callable[..., Output]) -> torch.Tensor:
        num_read = self._input.shape[1]
        logits = first_forward(self._input).logits
        for number in range(self._drafted.shape[1]):
            row = logits[-1:, : self._vocab_size]
            drawn, probs = self._draw.draw(row, self._stream.generator)
            place = slice(number, number + 1)
            self._logits[place] = row
            if self._probs is not None and probs is not None:
                self._probs[place] = probs
            self._drafted[0, place] = torch.where(self._is_given, self._given[place], drawn)
            if number + 1 < self._drafted.shape[1]:
                self._start.add_(num_read if number == 0 else 1)
                logits = forward(self._drafted[:, place]).logits
        self._start.sub_(num_read + self._drafted.shape[1] - 2)
        return self._drafted
