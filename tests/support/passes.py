"""Passes over static buffers in the place of compiled ones: right ones that round otherwise, and faulty ones."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from specbench.models.compiling import check_compilable
from specbench.models.kv_cache import StaticLayer
from specbench.models.scoring import Output, PassShape
from specbench.models.static_passes import StaticPasses

SHAPES = (PassShape(1), PassShape(6), PassShape(16, "tree"))
Pass = Callable[[StaticPasses, PassShape], Output]


def passes_with(model: Any, created: Pass, monkeypatch: pytest.MonkeyPatch) -> StaticPasses:
    """Passes of a network; `created` is taken for each that is to be compiled."""
    passes = StaticPasses(model, "tiny", check_compilable(model, "tiny"), 128, 1000, "compiled")

    def compiled(forward: Callable[[], Output], name: str) -> Callable[[], Output]:
        return lambda: created(passes, shape_of(name))

    monkeypatch.setattr("specbench.models.static_passes.compile_pass", compiled)
    return passes


def shape_of(name: str) -> PassShape:
    return next(shape for shape in SHAPES if shape.length == int(name.split("_")[1]))


def plain(passes: StaticPasses, shape: PassShape, **changed: Any) -> Output:
    options = dict(changed)
    if shape.kind == "tree":
        positions, masks = passes.tree_buffers(shape.length)
        options = {"positions": positions, "mask": masks["full_attention"], **options}
    return passes.forward(passes.input(shape.length), **options)


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def rounding_once(passes: StaticPasses, shape: PassShape) -> Output:
    """As a compiler fuses norms and activations: what lies between them is not rounded."""

    def norm(self: Any, states: torch.Tensor) -> torch.Tensor:
        wide = states.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * wide * scale).to(states.dtype)

    def mlp(self: Any, states: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(states).float(), self.up_proj(states).float()
        made: torch.Tensor = self.down_proj((functional.silu(gate) * up).to(states.dtype))
        return made

    with patched(LlamaRMSNorm, "forward", norm), patched(LlamaMLP, "forward", mlp):
        return plain(passes, shape)


def at_the_beginning(passes: StaticPasses, shape: PassShape) -> Output:
    passes.start.zero_()
    return plain(passes, shape)


def one_position_further(passes: StaticPasses, shape: PassShape) -> Output:
    positions = passes.start + torch.arange(shape.length)[None]
    if shape.kind == "tree":
        positions = passes.tree_buffers(shape.length)[0]
    return plain(passes, shape, positions=positions + 1)


def seeing_all(passes: StaticPasses, shape: PassShape) -> Output:
    mask = torch.arange(passes.capacity) < passes.start + shape.length
    return plain(passes, shape, mask=mask.expand(1, 1, shape.length, -1))


def not_seeing_the_last_token(passes: StaticPasses, shape: PassShape) -> Output:
    places = torch.arange(passes.capacity)
    mask = places <= (passes.start + torch.arange(shape.length))[:, None]
    if shape.kind == "tree":
        mask = passes.tree_buffers(shape.length)[1]["full_attention"][0, 0].clone()
    return plain(passes, shape, mask=(mask & (places != passes.start - 1))[None, None])


def without_a_layer(passes: StaticPasses, shape: PassShape) -> Output:
    layers = passes.model.model.layers
    with patched(layers, "_modules", {name: layer for name, layer in layers._modules.items() if name != "4"}):
        return plain(passes, shape)


def with_a_stale_row(passes: StaticPasses, shape: PassShape) -> Output:
    """In one layer, the last keys and values are not written."""
    update = StaticLayer.update

    def other(layer: StaticLayer, keys: torch.Tensor, values: torch.Tensor, *more: Any, **named: Any) -> Any:
        if layer is not passes._layers[5]:
            return update(layer, keys, values, *more, **named)
        return update(layer, keys[:, :, :-1], values[:, :, :-1], *more, **named)

    with patched(StaticLayer, "update", other):
        return plain(passes, shape)


def of_another_token(passes: StaticPasses, shape: PassShape) -> Output:
    tokens = passes.input(shape.length)
    first = tokens[:, 0].clone()
    tokens[:, 0] += 1
    with ExitStack() as stack:
        stack.callback(lambda: tokens[:, 0].copy_(first))
        return plain(passes, shape)


FAULTS = (
    at_the_beginning, one_position_further, seeing_all, not_seeing_the_last_token, without_a_layer, with_a_stale_row,
    of_another_token,
)  # fmt: skip
