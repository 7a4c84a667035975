"""A key-value cache whose buffers never move: keys are written by position, and going back is a smaller position."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from specbench.models.kv_cache import PreallocatedLayer


class StaticLayer(CacheLayerMixin):
    """Keys and values of one layer: [1, num_heads, capacity, head_dim]. `start`: where the next pass writes, a tensor
    that all layers share; what lies behind it is masked, since no query has seen it yet."""

    is_compileable = True  # transformers then makes a mask in every pass

    def __init__(self, is_sliding: bool, capacity: int, start: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_sliding = is_sliding
        self.capacity = capacity
        self.start = start

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._zeros_like(key_states)
        self.values = self._zeros_like(value_states)
        self.is_initialized = True

    def _zeros_like(self, states: torch.Tensor) -> torch.Tensor:
        batch, heads, _, head_dim = states.shape
        buffer = states.new_zeros((batch, heads, self.capacity, head_dim))
        torch._dynamo.mark_static_address(buffer)
        return buffer

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [1, num_heads, query_length, head_dim] at `start`; returns the whole buffers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        places = self.start + torch.arange(key_states.shape[-2], device=self.start.device)
        self.keys.index_copy_(2, places, key_states)
        self.values.index_copy_(2, places, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.capacity, 0

    def get_seq_length(self) -> torch.Tensor:  # type: ignore[override]
        return self.start

    def get_max_length(self) -> int:
        return self.capacity


def static_cache(layers: Sequence[PreallocatedLayer], capacity: int, start: torch.Tensor) -> Cache:
    """An empty cache with layers as others are."""
    return Cache(layers=[StaticLayer(layer.is_sliding, capacity, start) for layer in layers])
