"""Positions and attention masks for a pass over a draft tree (SpecInfer, arXiv:2305.09781, §4.2)."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

import torch

from specbench.core.errors import ConfigError

ATTENTION = ("sdpa", "eager")  # the implementations that accept a mask per query and key


def depths(parents: Sequence[int]) -> list[int]:
    """Returns the depth of each node, 1 for the children of the root, whose parent is −1: [num_nodes]."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def ancestors(parents: Sequence[int]) -> torch.Tensor:
    """Returns for each node (row) whether a node (column) is the node itself or an ancestor: [num_nodes, num_nodes]."""
    rows = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            rows[node] |= rows[parent]
    return rows


@lru_cache(maxsize=64)
def shape(parents: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns depths [num_nodes] and ancestors [num_nodes, num_nodes] of a tree; many steps have the same tree."""
    return torch.tensor(depths(parents), dtype=torch.long), ancestors(parents)


def check_attention(model: Any, name: str) -> None:
    """Raises ConfigError for an attention implementation, or a kind of layers, without a mask per token."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    used = "chunked attention" if "chunked_attention" in kinds else model.config._attn_implementation
    if used not in ATTENTION:
        raise ConfigError(
            f"draft trees need attention with a mask per token ({' or '.join(ATTENTION)}), and model '{name}' uses "
            f"{used}; use a method that drafts chains"
        )


def tree_inputs(
    model: Any, windows: AbstractSet[bool], num_prefix: int, parents: Sequence[int], num_read: int
) -> tuple[torch.Tensor, Any]:
    """Returns position ids [1, num_read] and the attention mask of a pass over the last `num_read` tokens of a sequence
    of `num_prefix` tokens followed by the nodes of a tree.

    Siblings share a position. The mask [1, 1, num_read, num_prefix + num_nodes] lets a token attend to the tokens of
    the sequence up to itself and, if it is a node, to its ancestors; sliding-window layers leave out tokens by
    position. `windows` tells whether layers have a sliding window; a model with layers of both kinds gets a dict of two
    masks.
    """
    levels, lineage = shape(tuple(parents))
    places = torch.cat([torch.arange(num_prefix), num_prefix - 1 + levels])
    positions = places[-num_read:]
    num_nodes = min(num_read, len(parents))  # that are read
    visible = torch.arange(len(places)) <= torch.arange(len(places) - num_read, len(places))[:, None]
    visible[num_read - num_nodes :, num_prefix:] = lineage[len(parents) - num_nodes :]
    masks: dict[bool, torch.Tensor] = {}
    for has_window in windows:
        near = positions[:, None] - places < (
            model.config.get_text_config().sliding_window if has_window else len(places)
        )
        masks[has_window] = attention_mask(visible & near, model)
    given = {"sliding_attention" if has_window else "full_attention": mask for has_window, mask in masks.items()}
    return positions[None].to(model.device), given if len(masks) == 2 else masks.popitem()[1]


def attention_mask(visible: torch.Tensor, model: Any) -> torch.Tensor:
    """Returns the mask [1, 1, num_read, num_tokens] of visible tokens for the model's attention implementation."""
    visible = visible[None, None].to(model.device)
    if model.config._attn_implementation == "sdpa":
        return visible
    # The eager implementation adds its mask to the scores.
    nothing = torch.zeros(visible.shape, dtype=model.dtype, device=model.device)
    return nothing.masked_fill(~visible, torch.finfo(model.dtype).min)
