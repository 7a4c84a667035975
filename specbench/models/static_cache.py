"""A cache of fixed buffers, as passes of fixed shapes need it."""

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin


class StaticLayer(CacheLayerMixin):
    """Keys and values of one layer: [1, num_heads, capacity, head_dim].

    `start` [] is the place where the next pass writes, one tensor of all layers. What lies behind the tokens of a pass
    is masked: no query has seen it yet. `places` [capacity]: the places that a pass writes to, where it computes them
    once for all layers.
    """

    is_compileable = True  # transformers then makes a mask in every pass

    def __init__(self, is_sliding: bool, capacity: int, start: torch.Tensor, places: torch.Tensor | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_sliding = is_sliding
        self.capacity = capacity
        self.start = start
        self.places = places

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._zeros_like(key_states)
        self.values = self._zeros_like(value_states)
        self.is_initialized = True

    def _zeros_like(self, states: torch.Tensor) -> torch.Tensor:
        batch, heads, _, head_dim = states.shape
        buffer = states.new_zeros((batch, heads, self.capacity, head_dim))
        if self.places is None:  # of a pass that is compiled as a whole; a layer that serves others has none
            torch._dynamo.mark_static_address(buffer)
        return buffer

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [1, num_heads, query_length, head_dim] at `start`; returns the whole buffers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        length = key_states.shape[-2]
        if self.places is None:
            places = self.start + torch.arange(length, device=self.start.device)
        else:
            places = self.places[:length]
        self.keys.index_copy_(2, places, key_states)
        self.values.index_copy_(2, places, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.capacity, 0

    def get_seq_length(self) -> torch.Tensor:  # type: ignore[override]
        return self.start

    def get_max_length(self) -> int:
        return self.capacity
