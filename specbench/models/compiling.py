"""A forward pass made fast: compiled without guards, on a GPU replayed as one graph."""

import importlib.util
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch

from specbench.core.errors import ConfigError
from specbench.models.kv_cache import PreallocatedLayer, preallocated_cache

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


# Root mean square, in standard deviations of the logits: far above the rounding of the dtype and of other kernels.
MAX_SHIFT = {torch.float32: 1e-3}
MAX_SHIFT_ROUNDED = 0.1


class CannotCompile(ConfigError):
    """A model has no compiled passes, on a machine that compiles others. `reason`: why, in one line."""

    def __init__(self, name: str, reason: str) -> None:
        self.reason = " ".join(reason.split())
        super().__init__(
            f"--engine compiled: model '{name}' cannot be compiled: {self.reason}; take --engine eager, or another "
            "model"
        )


def compilable(model: Any, name: str) -> list[PreallocatedLayer]:
    """The layers of a model as its cache has them. Raises CannotCompile."""
    layers = preallocated_cache(model.config, name).layers
    kinds = sorted({type(layer).__name__ for layer in layers if type(layer) is not PreallocatedLayer})
    parameters = inspect.signature(model.forward).parameters
    if kinds:
        raise CannotCompile(name, f"layers of kind {kinds[0]} keep a state that is no buffer of keys and values")
    if not model._can_compile_fullgraph:
        raise CannotCompile(name, f"transformers says that the passes of a {type(model).__name__} are no single graph")
    if missing := [key for key in ("logits_to_keep", "position_ids", "past_key_values") if key not in parameters]:
        raise CannotCompile(name, f"the forward pass of a {type(model).__name__} takes no {missing[0]}")
    return cast(list[PreallocatedLayer], layers)


def check_compiler(device: str) -> None:
    """Raise ConfigError where this machine compiles nothing for a device."""
    if problem := no_compiler(device):
        raise ConfigError(f"--engine compiled: {problem}, or take --engine eager")


def no_compiler(device: str) -> str | None:
    """What this machine lacks for compiling; None where it lacks nothing."""
    if device == "cuda":
        return None if importlib.util.find_spec("triton") else "there is no triton here: install it"
    if device != "cpu":
        return f"nothing compiles for {device} here"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler here: install g++, or name one in CXX"
    return None


def same_logits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of logits are the same up to the rounding of their dtype."""
    limit = MAX_SHIFT.get(first.dtype, MAX_SHIFT_ROUNDED)
    first, second = first.float(), second.float()
    return float((first - second).square().mean().sqrt()) <= limit * float(first.std()) + 1e-6
