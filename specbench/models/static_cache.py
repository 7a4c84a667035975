"""A key-value cache with fixed buffers, for passes of fixed shapes."""

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin


class StaticLayer(CacheLayerMixin):
    """Keys and values of one layer: [1, num_heads, capacity, head_dim].

    `start` []: the position at which the next pass writes, shared by all layers. Positions after the tokens of a pass
    are masked. `places` [capacity]: the positions that a pass writes, computed once for all layers; None if each layer
    computes them.
    """

    is_compileable = True  # makes transformers create a mask in every pass

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
        if self.places is None:  # the pass is compiled as a whole, not through one shared layer
            torch._dynamo.mark_static_address(buffer)
        return buffer

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes [1, num_heads, query_length, head_dim] at `start`. Returns the whole buffers."""
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

    def move(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Moves the tokens at `sources` to `targets`, [num_moved] each."""
        assert self.keys is not None and self.values is not None
        for buffer in (self.keys, self.values):
            buffer.index_copy_(2, targets, buffer.index_select(2, sources))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.capacity, 0

    def get_seq_length(self) -> torch.Tensor:  # type: ignore[override]
        return self.start

    def get_max_length(self) -> int:
        return self.capacity
