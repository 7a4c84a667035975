"""Key-value caches: a preallocated cache that grows, and a cache with fixed buffers for passes of fixed shapes;
positions and attention masks for passes over draft trees (SpecInfer, arXiv:2305.09781, §4.2).

In the preallocated cache, appending copies only the new keys, cropping is O(1), and the capacity grows by doubling.
Sliding-window layers keep their whole history, because a crop can make old keys visible again; the mask applies the
window. Recurrent layers are transformers' own; recurrent.py restores their earlier states.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers import PretrainedConfig
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from specbench.core.errors import ConfigError
from specbench.core.values import depths
from specbench.models.devices import upload

DUMMY = DYNAMIC_LAYER_TYPE_MAPPING.get("dummy")  # the class of layers without a cache; None in versions without it
INITIAL_CAPACITY = 256
CACHE_NAMES = ("past_key_values", "cache", "cache_params")  # before transformers 5.24, since then, of some networks


def cache_parameter(forward: Callable[..., Any]) -> str:
    """Returns which of CACHE_NAMES is the parameter of a forward function that takes the cache; the last if none is."""
    parameters = inspect.signature(forward).parameters
    return next((name for name in CACHE_NAMES if name in parameters), CACHE_NAMES[-1])


def resized(states: torch.Tensor, capacity: int) -> torch.Tensor:
    """Returns an empty buffer for `capacity` tokens like states [num_rows, num_heads, num_tokens, head_dim]."""
    return states.new_empty((*states.shape[:2], capacity, states.shape[3]))


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers [1, num_heads, capacity, head_dim], of which `length` are valid."""

    is_croppable = True

    def __init__(self, is_sliding: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_sliding = is_sliding
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (resized(states, INITIAL_CAPACITY) for states in (key_states, value_states))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends [1, num_heads, query_length, head_dim]. Returns views of all valid keys and values. Several rows are
        alternative continuations, which are not kept: each is returned with the cached row before it."""
        if key_states.shape[0] > 1:
            if self.keys is None or self.values is None:
                return key_states, value_states
            kept = (
                buffer[:, :, : self.length].expand(len(key_states), -1, -1, -1) for buffer in (self.keys, self.values)
            )
            keys, values = (torch.cat(pair, dim=-2) for pair in zip(kept, (key_states, value_states), strict=True))
            return keys, values
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        new_length, capacity = self.length + key_states.shape[-2], self.keys.shape[-2]
        if new_length > capacity:
            while capacity < new_length:
                capacity *= 2
            for name in ("keys", "values"):
                old = getattr(self, name)
                setattr(self, name, resized(old, capacity))
                getattr(self, name)[:, :, : self.length] = old[:, :, : self.length]
        self.keys[:, :, self.length : new_length] = key_states
        self.values[:, :, self.length : new_length] = value_states
        self.length = new_length
        return self.keys[:, :, :new_length], self.values[:, :, :new_length]

    def keep(self, start: int, places: torch.Tensor) -> None:
        """Moves the tokens at `places`, all at or after `start`, to `start`, and drops all others after `start`."""
        assert self.keys is not None and self.values is not None
        self.length = start + len(places)
        for buffer in (self.keys, self.values):
            buffer[:, :, start : self.length] = buffer.index_select(2, places)

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


class HybridLayer(PreallocatedLayer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc]
    """A layer with both attention and a recurrent state."""

    def __init__(self, is_sliding: bool, number_of_states: int) -> None:
        PreallocatedLayer.__init__(self, is_sliding)
        LinearAttentionLayer.__init__(self, number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Initializes keys and values from two positional arguments, or recurrent states from keyword arguments."""
        if args:
            PreallocatedLayer.lazy_initialization(self, *args)
        else:
            LinearAttentionLayer.lazy_initialization(self, **kwargs)


def preallocated_cache(config: PretrainedConfig, name: str) -> Cache:
    """Returns an empty cache for a model. Raises ConfigError for kinds of layers that cannot be rolled back."""

    def unsupported(kind: str) -> ConfigError:
        return ConfigError(
            f"model '{name}': layers of kind {kind} are not supported (they cannot be rolled back to an earlier "
            "token); choose a model with layers of attention (full or sliding-window), linear attention or state spaces"
        )

    text_config = config.get_text_config()
    kinds = {str(kind) for kind in getattr(text_config, "layer_types", None) or []}
    if unknown := sorted(kinds - {*DYNAMIC_LAYER_TYPE_MAPPING, "moe", "mlp"}):
        raise unsupported(unknown[0])
    layers: list[Any] = []
    for layer in DynamicCache(config=config).layers or [DynamicLayer() for _ in range(text_config.num_hidden_layers)]:
        is_sliding = isinstance(layer, DynamicSlidingWindowLayer)
        if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
            layers.append(PreallocatedLayer(is_sliding))
        elif isinstance(layer, LinearAttentionAndFullAttentionLayer | LinearAttentionAndSlidingWindowAttentionLayer):
            layers.append(HybridLayer(is_sliding, layer.number_of_states))
        elif type(layer) in (LinearAttentionLayer, DUMMY):
            layers.append(layer)
        else:
            raise unsupported(type(layer).__name__)
    return Cache(layers=layers)


class StaticLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers of fixed size: [1, num_heads, capacity, head_dim].

    `start` []: the position at which the next pass writes; all layers share it. Positions after the tokens of a pass
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
        self.keys, self.values = (resized(states, self.capacity).zero_() for states in (key_states, value_states))
        if self.places is None:  # the pass is compiled as a whole, not through one shared layer
            for buffer in (self.keys, self.values):
                torch._dynamo.mark_static_address(buffer)
        self.is_initialized = True

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


Masks = dict[str, Any]  # by type of layers; of flex_attention they are not tensors
ATTENTION = ("sdpa", "eager", "flex_attention")  # the implementations that accept a mask per query and key


def ancestors(parents: Sequence[int]) -> torch.Tensor:
    """Returns for each node (row) whether a node (column) is the node itself or an ancestor: [num_nodes, num_nodes]."""
    rows = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            rows[node] |= rows[parent]
    return rows


@lru_cache(maxsize=64)
def depths_and_ancestors(parents: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns depths [num_nodes] and ancestors [num_nodes, num_nodes] of a tree; many steps have the same tree."""
    return upload(torch.tensor(depths(parents), dtype=torch.long), device), upload(ancestors(parents), device)


def check_attention(
    model: Any, name: str, implementations: Sequence[str] = ATTENTION, what: str = "draft trees need",
    remedy: str = "use a method that drafts chains",
) -> None:  # fmt: skip
    """Raises ConfigError if the attention implementation, or a kind of layers, has no mask per token. `what`: needs
    one."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    used = "chunked attention" if "chunked_attention" in kinds else model.config._attn_implementation
    if used not in implementations:
        raise ConfigError(
            f"{what} attention with a mask per token ({' or '.join(implementations)}), and model '{name}' "
            f"uses {used}; {remedy}"
        )


def tree_inputs(
    model: Any, windows: Collection[bool], num_prefix: int, parents: Sequence[int], first: int, num_read: int,
    num_columns: int,
) -> tuple[torch.Tensor, Masks]:  # fmt: skip
    """Returns the positions [num_read] of a pass that reads `num_read` tokens from column `first` on, and its attention
    mask for each type of layers. The columns are a sequence of `num_prefix` tokens, the nodes of a tree, and padding.

    Siblings share a position. A token attends to the tokens of the sequence up to itself and, if it is a node, to its
    ancestors; sliding-window layers leave out tokens by position. Padding attends to the columns up to itself, so that
    its attention has a value. `windows`: True if some layers have a sliding window, False if some have none.
    """
    levels, lineage = depths_and_ancestors(tuple(parents), model.device)
    end, first_node = num_prefix + len(parents), max(first - num_prefix, 0)
    places = torch.arange(num_columns, device=model.device)
    visible = places <= places[first : first + num_read, None]
    visible[num_prefix + first_node - first : end - first, num_prefix:end] = lineage[first_node:]
    places[num_prefix:end] = levels + (num_prefix - 1)
    positions = places[first : first + num_read]
    masks = {}
    if False in windows:
        masks["full_attention"] = attention_mask(visible, model)
    if True in windows:
        near = positions[:, None] - places < model.config.get_text_config().sliding_window
        masks["sliding_attention"] = attention_mask(visible & near, model)
    return positions, masks


def by_layer_type(masks: Masks) -> Any:
    """Returns masks in the form in which transformers' models take them: one mask, or a dict for two types."""
    return masks if len(masks) > 1 else next(iter(masks.values()))


def attention_mask(visible: torch.Tensor, model: Any) -> Any:
    """Returns the mask of visible columns [num_read, num_columns] for the model's attention implementation."""
    if model.config._attn_implementation == "flex_attention":  # torch's kernel for CPUs crashes on a tensor mask
        num_read, num_columns = visible.shape
        return create_block_mask(
            lambda row, head, query, key: visible[query, key], 1, None, num_read, num_columns, visible.device
        )
    if model.config._attn_implementation == "sdpa":
        return visible[None, None]
    # The eager implementation adds its mask to the scores.
    nothing = torch.zeros(visible.shape, dtype=model.dtype, device=visible.device)
    return nothing.masked_fill(~visible, torch.finfo(model.dtype).min)[None, None]
