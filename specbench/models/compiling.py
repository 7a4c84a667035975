"""Forward passes compiled by torch.compile, in which one compiled decoder layer serves all layers, and hooks that
collect hidden states."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from types import FunctionType
from typing import Any, TypeVar, cast

import torch
from transformers.cache_utils import Cache

from specbench.core.environment import is_installed
from specbench.core.errors import ConfigError
from specbench.models.fused import one_row_products
from specbench.models.kv_cache import CACHE_NAMES, PreallocatedLayer, cache_parameter, preallocated_cache
from specbench.models.packed import PRODUCTS
from specbench.models.scoring import VERBS, Output
from specbench.specs.components import EngineName, StaticEngine

Result = TypeVar("Result")
PASS_OPTIONS: dict[str, object] = {
    "post_grad_fusion_options": {"decompose_mm_pass": {}},  # on a CPU, computes one-row products as sums
}
ONE_ROW_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    "coordinate_descent_tuning": True  # tunes the kernels that read the weights
}


def compile_pass(forward: Callable[[], Output], name: str) -> Callable[[], Output]:
    """Compiles a whole pass, specialised to its current tensors, and runs it once. Returns the compiled graph bound to
    these inputs, without torch's guards, whose checks would take a large part of a short pass."""
    calls: list[Callable[[], Any]] = []
    results: list[Sequence[Any]] = []

    def backend(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx  # the import takes a second

        for part in graph.modules():
            if isinstance(part, torch.fx.GraphModule):
                join_products(part)
        function: Any = compile_fx(graph, examples, config_patches=PASS_OPTIONS)

        def run(*inputs: Any) -> Any:
            calls.append(partial(function, *inputs))
            results.append(calls[-1]())
            return results[-1]

        return run

    found = torch.compile(with_own_code(forward, name), fullgraph=True, dynamic=False, backend=backend)()
    (call,), (result,) = calls, results
    wanted = (found.logits, *found.hidden)
    logits, *hidden = (next(at for at, each in enumerate(result) if each is tensor) for tensor in wanted)

    def run() -> Output:
        outputs = call()
        return Output(outputs[logits], tuple(outputs[place] for place in hidden))

    return run


def join_products(graph: torch.fx.GraphModule) -> None:
    """Computes each product of stored weights once, of which several layers take parts."""
    kept: dict[tuple[Any, ...], torch.fx.Node] = {}
    for node in graph.graph.nodes:
        if node.target in PRODUCTS and kept.setdefault((node.target, *node.args), node) is not node:
            node.replace_all_uses_with(kept[node.target, *node.args])
            graph.graph.erase_node(node)
    graph.recompile()


def with_own_code(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a copy of the function with its own code object, so that torch caches its compiled code separately."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=name)
    own = FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    return own


class SharedLayers:
    """The decoder layers of a network, which share one compiled forward function.

    torch recompiles a layer for each distinct attribute value that its forward pass reads. During the calls, every
    layer therefore has index 0 and its own one-layer cache; its parameters and buffers are inputs of the compiled
    function.
    """

    def __init__(self, layers: Sequence[torch.nn.Module], cache: Cache, hidden_size: int) -> None:
        self._layers, self._hidden_size = layers, hidden_size
        assert all(cast(Any, layer).is_initialized for layer in cache.layers)
        self._caches = [Cache(layers=[copy(layer)]) for layer in cache.layers]  # with the same buffers
        self._indexed = [part for layer in layers for part in layer.modules() if hasattr(part, "layer_idx")]

    def compile_layers(
        self, forward: Callable[..., Result], length: int, name: str, backend: str = "inductor"
    ) -> Callable[..., Result]:
        """Returns `forward`, the network's pass over `length` tokens, with the compiled layer function."""
        own = with_own_code(type(self._layers[0]).forward, name)
        options = ONE_ROW_OPTIONS if length == 1 and backend == "inductor" else None
        layer_forward = torch.compile(own, fullgraph=True, dynamic=False, options=options, backend=backend)

        def run(*given: Any, **named: Any) -> Result:
            products = one_row_products(self._layers, self._hidden_size) if length == 1 else nullcontext()
            with self._called_through(layer_forward), products:
                return forward(*given, **named)

        return run

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Makes torch trace and compile one layer for all layers of the passes that are traced during the block. torch
        traces each layer anew if its cache is an argument, and uses the first layer's cache for all of them if the
        cache objects are also reachable elsewhere, as in the cache of the whole pass. Each layer therefore has a cache
        object of its own, as an attribute."""
        forward: Callable[..., Any] = type(self._layers[0]).forward
        name = cache_parameter(forward)

        @torch.compiler.nested_compile_region
        def nested_layer(layer: Any, *given: Any, **named: Any) -> Any:
            return forward(layer, *given, **named, **{name: layer.own_cache})

        def layer_forward(layer: Any, *given: Any, **named: Any) -> Any:
            return nested_layer(layer, *given, **{key: value for key, value in named.items() if key != name})

        for layer, cache in zip(self._layers, self._caches, strict=True):
            layer.own_cache = cache  # type: ignore[assignment]
        try:
            with self._called_through(layer_forward):
                yield
        finally:
            for layer in self._layers:
                del layer.own_cache

    @contextmanager
    def _called_through(self, layer_forward: Callable[..., Any]) -> Iterator[None]:
        indices = [part.layer_idx for part in self._indexed]
        for part in self._indexed:
            part.layer_idx = 0  # type: ignore[assignment]
        name = cache_parameter(type(self._layers[0]).forward)
        for layer, cache in zip(self._layers, self._caches, strict=True):
            layer.forward = partial(_with_cache, layer_forward, layer, name, cache)
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward
            for part, index in zip(self._indexed, indices, strict=True):
                part.layer_idx = index


def _with_cache(layer_forward: Any, layer: torch.nn.Module, name: str, own: Cache, /, *given: Any, **named: Any) -> Any:
    return layer_forward(layer, *given, **{**named, name: own})


def decoder_layers(model: Any, cache: Cache) -> torch.nn.ModuleList | None:
    """Returns the decoder layers of a network; None if they are not found."""
    for part in model.modules():
        if not isinstance(part, torch.nn.ModuleList) or len(part) != len(cache.layers):
            continue
        if cache_parameter(part[0].forward) in CACHE_NAMES[:2]:
            return part
    return None


@contextmanager
def one_layer_of_each_kind(layers: torch.nn.ModuleList) -> Iterator[None]:
    """Leaves only the first layer of each kind in a network during the block, so that tracing it takes less time.

    Two layers are of one kind if all their parts have the same classes and the same plain attributes, such as the type
    of attention; their indices may differ.
    """
    before = layers._modules
    kinds: dict[Any, torch.nn.Module] = {}
    plain = (bool, int, float, str, type(None))
    for layer in layers:
        kind = []
        for part in layer.modules():
            values = [(key, value) for key, value in vars(part).items() if isinstance(value, plain)]
            kind.append((type(part), tuple(each for each in values if each[0] != "layer_idx")))
        kinds.setdefault(tuple(kind), layer)
    layers._modules = {str(number): layer for number, layer in enumerate(kinds.values())}
    try:
        yield
    finally:
        layers._modules = before


def shared_layers(model: Any, cache: Cache) -> SharedLayers | None:
    """Returns the decoder layers of a network; None if they are not found or cannot share one compiled function."""
    layers = decoder_layers(model, cache)
    if layers is None:
        return None
    is_one_kind = all(type(layer) is type(layers[0]) for layer in layers)
    if is_one_kind and isinstance(type(layers[0]).forward, FunctionType):
        return SharedLayers(list(layers), cache, model.config.get_text_config().hidden_size)
    return None


class CannotCompile(ConfigError):
    """Raised for a model that does not support compiled or recorded passes. `reason`: one line."""

    def __init__(self, name: str, reason: str, engine: EngineName = "compiled") -> None:
        self.reason = " ".join(reason.split())
        super().__init__(
            f"--engine {engine}: model '{name}' cannot be {VERBS[engine]}: {self.reason}; take --engine eager, or "
            "another model"
        )


def check_compilable(model: Any, name: str, engine: EngineName = "compiled") -> list[PreallocatedLayer]:
    """Returns the layers of a model's cache. Raises CannotCompile if a layer or the forward pass is unsupported."""
    layers = preallocated_cache(model.config, name).layers
    kinds = sorted({type(layer).__name__ for layer in layers if type(layer) is not PreallocatedLayer})
    parameters = inspect.signature(model.forward).parameters
    if kinds:
        reason = f"layers of kind {kinds[0]} keep a state that is not a buffer of keys and values"
        raise CannotCompile(name, reason, engine)
    if engine == "compiled" and not model._can_compile_fullgraph:
        raise CannotCompile(
            name, f"transformers says that the passes of a {type(model).__name__} are not a single graph"
        )
    wanted = ("logits_to_keep", "position_ids", cache_parameter(model.forward))
    if missing := [key for key in wanted if key not in parameters]:
        raise CannotCompile(name, f"the forward pass of a {type(model).__name__} takes no {missing[0]}", engine)
    return cast(list[PreallocatedLayer], layers)


def no_compiler(device: str) -> str | None:
    """Returns the reason why this machine cannot compile for a device; None if it can."""
    if device == "cuda":
        return None if is_installed("triton") else "there is no triton here: install it"
    if device != "cpu":
        return f"nothing compiles for {device} here"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler here: install g++, or name one in CXX"
    return None


class HiddenStates:
    """Collects hidden states while a pass runs or is traced, numbered as in transformers' `hidden_states`.

    transformers' own collection also puts hooks inside the decoder layers, which separately compiled layers cannot run.
    """

    def __init__(self, model: Any, name: str, cache: Cache, engine: StaticEngine) -> None:
        layers = decoder_layers(model, cache)
        if layers is None:
            raise CannotCompile(name, "its decoder layers, whose states a drafter reads, are not found", engine)
        self._num_states = len(layers) + 1
        self._kept: dict[int, Any] = {}

        def keep(index: int, states: Any) -> None:
            if index in self._kept:
                self._kept[index] = states

        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda _, given, index=index: keep(index, given[0]))
        model.get_decoder().register_forward_hook(lambda _, given, made: keep(len(layers), made.last_hidden_state))

    def start(self, layers: Sequence[int]) -> None:
        """Begins to collect the states of `layers`; a negative number counts from the end."""
        self._kept = {layer % self._num_states: None for layer in layers}

    def stop(self, layers: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Ends the collection. Returns the states of `layers`, [1, num_tokens, width] each."""
        kept, self._kept = self._kept, {}
        return tuple(kept[layer % self._num_states] for layer in layers)
