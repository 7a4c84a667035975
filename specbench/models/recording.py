"""CUDA graphs: a forward pass that is recorded once and replayed as one launch."""

from collections.abc import Callable
from typing import Any

import torch

NUM_WARM_RUNS = 2  # before a graph is recorded: libraries allocate what they need

_POOLS: dict[int, Any] = {}  # one pool of graph memory for each device
_num_recorded = 0


def num_recordings() -> int:
    """Returns the number of CUDA graphs that were recorded in this process."""
    return _num_recorded


def recorded(
    run: Callable[[], torch.Tensor], device: torch.device, generator: torch.Generator | None = None
) -> Callable[[], torch.Tensor]:
    """Returns a function that replays `run` as one CUDA graph.

    `run` reads and writes fixed buffers and does not wait for the device. All graphs of a device share their
    intermediate memory, so a result must be copied before the next replay. `generator`: the source of the random
    numbers of `run`; each replay takes up its current state and moves it on.
    """
    global _num_recorded
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARM_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=_pool(device)):
            result = run()
    _num_recorded += 1

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


def _pool(device: torch.device) -> Any:
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _POOLS:
        _POOLS[index] = torch.cuda.graph_pool_handle()
    return _POOLS[index]


class SharedStream:
    """A random stream that recorded graphs draw from. The generator of one generation at a time is joined to it: both
    then have one state, so that draws of graphs and other draws follow one another as without graphs."""

    def __init__(self, device: torch.device) -> None:
        self.generator = torch.Generator(device=device)
        self._joined: torch.Generator | None = None

    def join(self, generator: torch.Generator) -> None:
        """Let `generator` and the graphs share one state, that of `generator`."""
        if generator is self._joined:
            return
        if self._joined is not None:
            self._joined.graphsafe_set_state(self._joined.clone_state())
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.graphsafe_set_state(self.generator.graphsafe_get_state())
        generator.manual_seed(seed)
        generator.set_offset(offset)
        self._joined = generator
