"""Positions and attention masks for a pass over a draft tree (SpecInfer, arXiv:2305.09781, §4.2)."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask

from specbench.core.errors import ConfigError
from specbench.core.values import depths
from specbench.models.devices import upload

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


def check_attention(model: Any, name: str, implementations: Sequence[str] = ATTENTION) -> None:
    """Raises ConfigError if the attention implementation, or a kind of layers, has no mask per token."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    used = "chunked attention" if "chunked_attention" in kinds else model.config._attn_implementation
    if used not in implementations:
        raise ConfigError(
            f"draft trees need attention with a mask per token ({' or '.join(implementations)}), and model '{name}' "
            f"uses {used}; use a method that drafts chains"
        )


def tree_inputs(
    model: Any, windows: Collection[bool], num_prefix: int, parents: Sequence[int], first: int, num_read: int,
    num_columns: int,
) -> tuple[torch.Tensor, dict[str, Any]]:  # fmt: skip
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


def by_layer_type(masks: Mapping[str, Any]) -> Any:
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
