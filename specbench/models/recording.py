"""CUDA graphs: forward passes that are recorded once and replayed with one launch."""

import gc
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

import torch

Result = TypeVar("Result")
NUM_WARM_RUNS = 2  # before the recording, so that libraries allocate their memory

_num_recorded = 0


class _Pool:
    """Memory that a device's graphs share; it is freed when the last graph is dropped."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()


_POOLS: WeakValueDictionary[int, _Pool] = WeakValueDictionary()  # by device


def has_graphs(device: torch.device) -> bool:
    """Returns whether passes on a device can be recorded."""
    return device.type == "cuda"


def num_recordings() -> int:
    """Returns the number of CUDA graphs that were recorded in this process."""
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
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARM_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        pool = _pool(device)
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=pool.handle):
            result = run()
    _num_recorded += 1

    def replay(pool: _Pool = pool) -> Result:  # keeps the pool alive as long as the graph
        graph.replay()
        return result

    return replay


def _pool(device: torch.device) -> _Pool:
    """Returns the pool of a device. Collects garbage first, since a pool without graphs must not be reused."""
    gc.collect()
    index = torch.cuda.current_device() if device.index is None else device.index
    pool = _POOLS.get(index)
    if pool is None:
        pool = _POOLS[index] = _Pool()
    return pool


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
