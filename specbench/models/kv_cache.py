"""A preallocated key-value cache: appending copies only the new keys, cropping is O(1), growth doubles.

Sliding-window layers keep their whole history (a crop must bring old keys back); the mask applies the window.
"""

from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from specbench.errors import ConfigError

INITIAL_CAPACITY = 256


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers [1, num_heads, capacity, head_dim], of which `length` are valid."""

    is_croppable = True

    def __init__(self, is_sliding: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_sliding = is_sliding
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._empty_like(key_states, INITIAL_CAPACITY)
        self.values = self._empty_like(value_states, INITIAL_CAPACITY)
        self.is_initialized = True

    @staticmethod
    def _empty_like(states: torch.Tensor, capacity: int) -> torch.Tensor:
        batch, heads, _, head_dim = states.shape
        return states.new_empty((batch, heads, capacity, head_dim))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [1, num_heads, query_length, head_dim]; returns views of all valid keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        new_length = self.length + key_states.shape[-2]
        if new_length > self.keys.shape[-2]:
            self._grow(new_length)
        self.keys[:, :, self.length : new_length] = key_states
        self.values[:, :, self.length : new_length] = value_states
        self.length = new_length
        return self.keys[:, :, :new_length], self.values[:, :, :new_length]

    def _grow(self, needed: int) -> None:
        assert self.keys is not None and self.values is not None
        capacity = self.keys.shape[-2]
        while capacity < needed:
            capacity *= 2
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._empty_like(old, capacity)
            new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.length = 0


def preallocated_cache(config: PretrainedConfig, name: str) -> Cache:
    """An empty cache for a model's layers. Raises ConfigError for layers that are not plain or sliding attention."""
    template = DynamicCache(config=config)
    lazily_made = template.layers or [DynamicLayer() for _ in range(config.get_text_config().num_hidden_layers)]
    layers: list[Any] = []
    for layer in lazily_made:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise ConfigError(
                f"model '{name}': layers of kind {type(layer).__name__} (recurrent or hybrid) are not supported yet; "
                "choose a model whose layers are all attention (full or sliding-window)"
            )
        layers.append(PreallocatedLayer(isinstance(layer, DynamicSlidingWindowLayer)))
    return Cache(layers=layers)
