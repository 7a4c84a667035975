"""A key-value cache for a batch that is continued: room for all new tokens is made once, and rows can be dropped."""

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """Keys and values [num_rows, num_heads, length, head_dim] are views of buffers with `room` more places."""

    def __init__(self, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room = room
        self._buffers: dict[str, Tensor] = {}

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length = self.get_seq_length()
        self.keys = self._append("keys", length, key_states)
        self.values = self._append("values", length, value_states)
        return self.keys, self.values

    def _append(self, name: str, length: int, states: Tensor) -> Tensor:
        rows, heads, num_new, width = states.shape
        whole = self._buffers.get(name)
        if whole is None or whole.shape[2] < length + num_new:
            larger = states.new_empty((rows, heads, length + num_new + self._room, width))
            if whole is not None:
                larger[:, :, :length] = whole[:, :, :length]
            whole = self._buffers[name] = larger
        whole[:, :, length : length + num_new] = states
        return whole[:, :, : length + num_new]

    def batch_select_indices(self, indices: Tensor) -> None:
        length = self.get_seq_length()
        self._buffers = {name: whole[indices] for name, whole in self._buffers.items()}
        self.keys, self.values = (self._buffers[name][:, :, :length] for name in ("keys", "values"))


def roomy_cache(config: Any, room: int) -> DynamicCache:
    """An empty cache; layers of other kinds than full attention are transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def drop_rows(cache: DynamicCache, kept: Tensor) -> None:
    """Keep only some rows: [num_kept] indices."""
    for layer in cache.layers:
        assert isinstance(layer, RoomyLayer)
        layer.batch_select_indices(kept)


def can_drop_rows(cache: DynamicCache) -> bool:
    """Whether every layer can."""
    return bool(cache.layers) and all(isinstance(layer, RoomyLayer) for layer in cache.layers)
