"""A forward pass made fast: compiled without guards, on a GPU replayed as one graph."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

NUM_WARM_RUNS = 2  # before a CUDA graph is recorded: libraries allocate what they need


def compiled(forward: Callable[[], torch.Tensor], name: str) -> Callable[[], torch.Tensor]:
    """A function without arguments, compiled for what it reads now: guards would take a good part of a short pass."""
    options: dict[str, Any] = {
        "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
        "post_grad_fusion_options": {"decompose_mm_pass": {}},  # a product with one row is no matrix product on a CPU
    }
    own = with_own_code(forward, name)
    made: Callable[[], torch.Tensor] = torch.compile(own, fullgraph=True, dynamic=False, options=options)
    return made


def with_own_code(forward: Callable[[], torch.Tensor], name: str) -> Callable[[], torch.Tensor]:
    """The same function, which shares no compiled code with another of the same text."""
    assert isinstance(forward, FunctionType)
    return FunctionType(forward.__code__.replace(co_name=name), forward.__globals__, name, None, forward.__closure__)


def recorded(run: Callable[[], torch.Tensor], device: torch.device, pool: Any) -> Callable[[], torch.Tensor]:
    """A compiled pass as one CUDA graph, which is replayed as it is: nothing is launched one by one, or recorded anew.

    Graphs of one pool share their intermediate memory: what a pass returns must be copied before the next pass.
    """
    with torch.cuda.device(device):
        apart = torch.cuda.Stream()
        apart.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(apart):
            for _ in range(NUM_WARM_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(apart)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return logits

    return replay
