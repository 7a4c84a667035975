"""CUDA graphs: forward passes that are recorded once and replayed with one launch, and whole drafts, which contain the
one-token passes and the draws between them."""

import gc
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

import torch

from specbench.models.scoring import Draft, Output, Sampler

Result = TypeVar("Result")
NUM_WARM_RUNS = 2  # before the recording, so that libraries allocate their memory

_num_recorded = 0


class _Pool:
    """Memory that a device's graphs share; it is freed when the last graph is dropped."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()


_POOLS: WeakValueDictionary[int, _Pool] = WeakValueDictionary()  # by device
_SIDES: dict[int, torch.cuda.Stream] = {}  # by device, since libraries keep memory for every stream


def has_graphs(device: torch.device) -> bool:
    return device.type == "cuda"


def num_recordings() -> int:
    return _num_recorded


def record_graph(
    run: Callable[[], Result], device: torch.device, generator: torch.Generator | None = None
) -> Callable[[], Result]:
    """Returns a function that replays `run` as one CUDA graph.

    `run` reads and writes fixed buffers and does not wait for the device. All graphs of a device share their
    intermediate memory, so a result must be copied before the next replay. `generator`: the source of `run`'s random
    numbers; each replay starts from its current state and advances it.
    """
    global _num_recorded
    with torch.cuda.device(device):
        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in _SIDES:
            _SIDES[index] = torch.cuda.Stream()
        side = _SIDES[index]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARM_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        gc.collect()  # a pool without graphs must not be used again
        pool = _POOLS.get(index) or _Pool()
        _POOLS[index] = pool
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=pool.handle):
            result = run()
    _num_recorded += 1

    # The graph reads the buffers that `run` refers to, which must live as long as it does, as must the pool.
    def replay(run: Callable[[], Result] = run, pool: _Pool = pool) -> Result:
        graph.replay()
        return result

    return replay


class SharedStream:
    """The random stream of recorded graphs. It shares its state with the generator of one generation at a time, so that
    draws inside and outside of graphs form one sequence, as they do without graphs."""

    def __init__(self, device: torch.device) -> None:
        self.generator = torch.Generator(device=device)
        self._joined: torch.Generator | None = None

    def join(self, generator: torch.Generator) -> None:
        """Makes the graphs share the state of `generator`. The previously joined generator gets its own copy."""
        if generator is self._joined:
            return
        if self._joined is not None:
            self._joined.graphsafe_set_state(self._joined.clone_state())
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.graphsafe_set_state(self.generator.graphsafe_get_state())
        generator.manual_seed(seed)
        generator.set_offset(offset)
        self._joined = generator


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

    def differs_from(self, forward: Callable[..., Output], agree: Callable[..., bool]) -> bool:
        """Returns whether, on other tokens than when it was recorded, the draft's logits differ from those of separate
        passes of `forward`. `agree`: compares logits with those of right passes."""
        self._input.copy_(torch.arange(1, self._input.shape[1] + 1, device=self._start.device)[None])
        given = torch.arange(7, 7 + self._given.shape[0], device=self._start.device)
        generator = torch.Generator(device=self._start.device).manual_seed(0)
        found = self.run(generator, given).logits.clone()
        self._run(forward, forward)
        return not agree(found, [self._logits])

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
