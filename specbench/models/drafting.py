"""A draft of several tokens as one CUDA graph: passes of one token each, and the draws between them."""

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

import torch

from specbench.models.recording import SharedStream, recorded


class Draw(Hashable, Protocol):
    """A way of drawing tokens, such as decoding.sampling.Sampling."""

    def draw(self, logits: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One token from each row of logits [num_rows, vocab]: tokens [num_rows], and the probabilities that they were
        drawn from, [num_rows, vocab], or None for point masses."""


class Draft(NamedTuple):
    """Draft tokens on the device: tokens [n], logits [n, vocab], and the probabilities that they were drawn from,
    [n, vocab] (None for point masses)."""

    tokens: torch.Tensor
    logits: torch.Tensor
    probs: torch.Tensor | None


class RecordedDraft:
    """Drafts `num_tokens` tokens: the first pass reads `tokens` [1, num_read] at `start`, each other the token before.

    `forward` maps tokens [1, n] to logits [n, output_size] at `start`. The results lie in buffers that the next draft
    writes over.
    """

    def __init__(
        self, forwards: tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]], tokens: torch.Tensor,
        start: torch.Tensor, stream: SharedStream, num_tokens: int, draw: Draw, vocab_size: int,
    ) -> None:  # fmt: skip
        self._input, self._start, self._stream, self._draw = tokens, start, stream, draw
        self._vocab_size = vocab_size
        self._drafted = torch.zeros((1, num_tokens), dtype=torch.long, device=start.device)
        self._given = torch.zeros(num_tokens, dtype=torch.long, device=start.device)
        self._is_given = torch.zeros(1, dtype=torch.bool, device=start.device)
        self._reads_given = False  # what the device's flag says
        logits = forwards[0](tokens)[-1:, :vocab_size]
        _, probs = draw.draw(logits, stream.generator)
        self._logits = torch.zeros((num_tokens, vocab_size), dtype=logits.dtype, device=start.device)
        self._probs = None if probs is None else torch.zeros_like(self._logits, dtype=probs.dtype)
        self._replay = recorded(lambda: self._run(*forwards), start.device, stream.generator)

    def run(self, generator: torch.Generator, given: torch.Tensor | None = None) -> Draft:
        """Draft behind the tokens that lie in the input, with the random numbers of `generator`."""
        self._stream.join(generator)
        if given is not None:
            self._given.copy_(given)
        if self._reads_given != (given is not None):
            self._reads_given = given is not None
            self._is_given.fill_(self._reads_given)
        self._replay()
        return Draft(self._drafted[0], self._logits, self._probs)

    def differs_from(self, forward: Callable[..., torch.Tensor], same: Callable[..., bool]) -> bool:
        """Whether the recorded draft has other logits than the same passes made one by one by `forward`, on tokens that
        it was not recorded with."""
        self._input.copy_(torch.arange(1, self._input.shape[1] + 1, device=self._start.device)[None])
        given = torch.arange(7, 7 + self._given.shape[0], device=self._start.device)
        generator = torch.Generator(device=self._start.device).manual_seed(0)
        found = self.run(generator, given).logits.clone()
        self._run(forward, forward)
        return not same(self._logits, found)

    def _run(self, first_forward: Callable[..., torch.Tensor], forward: Callable[..., torch.Tensor]) -> torch.Tensor:
        num_read = self._input.shape[1]
        logits = first_forward(self._input)
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
                logits = forward(self._drafted[:, place])
        self._start.sub_(num_read + self._drafted.shape[1] - 2)
        return self._drafted
