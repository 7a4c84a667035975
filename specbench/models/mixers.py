"""Mixers: the modules of a network that carry a recurrent or convolution state from token to token."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

SMALLEST_CHUNK = 8  # tokens


def mixers_of(model: Any) -> list[Any]:
    """The modules that write a recurrent or convolution state into the cache, each for the layer `layer_idx`."""
    writers = {"update_conv_state", "update_recurrent_state"}
    modules = [module for module in model.modules() if hasattr(module, "layer_idx")]
    return [module for module in modules if writers & set(code_of(module).co_names)]


def continues_chunks(mixer: Any) -> bool:
    """Whether a pass of several tokens starts from the cached state: without a recurrent state, or handing it on."""
    code = code_of(mixer)
    if "update_recurrent_state" not in code.co_names:
        return True
    keywords = {name for names in code.co_consts if isinstance(names, tuple) for name in names}
    return bool(keywords & {"initial_state", "initial_states"})


def code_of(module: Any) -> Any:
    """The byte code of a module's forward, as its class wrote it."""
    return inspect.unwrap(type(module).forward).__code__


def fit_chunks(mixer: Any) -> Callable[..., torch.Tensor]:
    """The mixer's forward. Without kernels of its own (on a CPU) Mamba2 pads each pass to a whole chunk, 256 tokens for
    a few drafts: there short passes get short chunks. The size of a chunk is no part of the result."""
    forward: Callable[..., torch.Tensor] = mixer.forward
    largest = getattr(mixer, "chunk_size", None)
    if not isinstance(largest, int) or next(mixer.parameters()).device.type != "cpu":
        return forward

    def fitted(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        mixer.chunk_size = min(largest, max(SMALLEST_CHUNK, 1 << (hidden_states.shape[1] - 1).bit_length()))
        return forward(hidden_states, *args, **kwargs)

    return fitted
