"""Faster attention, norms and linear layers for passes over few tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

GROUPED = "specbench_grouped_sdpa"
LONGEST_GROUPED = 64  # query tokens; limited since the mask is copied for each head of a group


def grouped_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    scaling: float | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Computes grouped-query attention without repeating keys and values per query head: the query heads of a group
    become rows of one query.

    query [1, num_heads, query_length, head_dim], key and value [1, num_key_heads, capacity, head_dim], a boolean
    attention_mask [1, 1, query_length, capacity], or None, with which a single token attends to all keys; returns
    [1, query_length, num_heads, head_dim].
    """
    num_rows, num_heads, length, head_dim = query.shape
    groups = num_heads // key.shape[1]
    is_plain = groups == 1 or length > LONGEST_GROUPED or kwargs.get("position_bias") is not None
    has_own_mask = length > 1 if attention_mask is None else attention_mask.shape[1] != 1
    if is_plain or has_own_mask or num_rows > 1:
        found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return found, None
    rows = query.reshape(1, key.shape[1], groups * length, head_dim)
    mask = attention_mask if attention_mask is None or length == 1 else attention_mask.repeat(1, 1, groups, 1)
    if (
        mask is not None and torch.compiler.is_compiling()
    ):  # fuses scale, mask and softmax, which is faster than sdpa here
        scores = torch.matmul(rows, key.transpose(2, 3)).float() * (head_dim**-0.5 if scaling is None else scaling)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        attended = torch.matmul(weights.to(value.dtype), value)
    else:
        attended = functional.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return attended.reshape(1, num_heads, length, head_dim).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(GROUPED, grouped_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(GROUPED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


@contextmanager
def attending_in_groups(config: Any) -> Iterator[None]:
    """Replaces transformers' sdpa with `grouped_attention` during the block; other attention is unchanged."""
    before = config._attn_implementation
    if before == "sdpa":
        config._attn_implementation = GROUPED
    try:
        yield
    finally:
        config._attn_implementation = before


BY_ROW = "specbench_sdpa_by_row"
_Columns = slice | torch.Tensor


@dataclass
class _Rows:
    """The rows of a pass that are computed, and the columns that each sees, by the mask of a type of layers."""

    num: int
    columns: dict[int, list[_Columns]] = field(default_factory=dict)

    def of(self, mask: torch.Tensor) -> list[_Columns]:
        if id(mask) not in self.columns:  # masks live as long as their pass
            self.columns[id(mask)] = [seen_columns(visible) for visible in mask[0, 0, : self.num]]
        return self.columns[id(mask)]


_ROWS = _Rows(0)


def seen_columns(visible: torch.Tensor) -> _Columns:
    """Returns the columns that a row of a mask sees: a slice, unless there are gaps between them."""
    places = visible.nonzero()[:, 0]
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places


def attention_by_row(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor,
    scaling: float | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Computes the attention of each row alone, over the keys that it sees. So it depends neither on the number of rows
    nor on keys that are masked, whose number decides in what order fused kernels add up. See `grouped_attention`; the
    rows of padding are zero."""
    num_rows, num_heads = query.shape[2], query.shape[1]
    attended = query.new_zeros(1, num_rows, num_heads, value.shape[3])
    for row, columns in enumerate(_ROWS.of(attention_mask)):
        attended[:, row : row + 1], _ = grouped_attention(
            module, query[:, :, row : row + 1], key[:, :, columns], value[:, :, columns], None, scaling, **kwargs
        )
    return attended, None


ALL_ATTENTION_FUNCTIONS.register(BY_ROW, attention_by_row)
ALL_MASK_ATTENTION_FUNCTIONS.register(BY_ROW, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


@contextmanager
def attending_by_row(config: Any, num_rows: int) -> Iterator[None]:
    """Replaces transformers' sdpa with `attention_by_row` during the block, for a pass of which the first `num_rows`
    rows count."""
    global _ROWS
    before = config._attn_implementation
    config._attn_implementation, _ROWS = BY_ROW, _Rows(num_rows)
    try:
        yield
    finally:
        config._attn_implementation = before


def fusable_norms(model: nn.Module) -> list[nn.Module]:
    """Returns the RMS norms of a model that equal torch's rms_norm up to rounding. Others are left out, such as norms
    that add one to their weight."""
    found = []
    for part in model.modules():
        weight, eps = getattr(part, "weight", None), getattr(part, "variance_epsilon", None)
        if type(part).__name__.endswith("RMSNorm") and eps is not None and weight is not None and weight.dim() == 1:
            states = torch.linspace(-2, 2, len(weight), dtype=weight.dtype, device=weight.device)[None]
            with torch.inference_mode():
                is_same = torch.allclose(_rms_norm(part, states), part(states), rtol=4 * torch.finfo(states.dtype).eps)
            if is_same:
                found.append(part)
    return found


@contextmanager
def fused_norms(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Computes `norms` by torch's own function during the block: one kernel on a GPU (torch 2.8 or newer) in place of
    seven."""
    for norm in norms:
        norm.forward = partial(_rms_norm, norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _rms_norm(norm: Any, states: torch.Tensor) -> torch.Tensor:
    if states.dtype != norm.weight.dtype:  # such as float32 residuals, for which torch has no kernel
        found: torch.Tensor = type(norm).forward(norm, states)
        return found
    return functional.rms_norm(states, norm.weight.shape, norm.weight, norm.variance_epsilon)


class OneRowLinear(nn.Linear):
    """A linear layer for a single token, computed as a sum over its inputs. torch.compile fuses it with preceding
    operations and with other layers of the same input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        product = (input[..., None, :].float() * self.weight.float()).sum(-1)
        found: torch.Tensor = (product if self.bias is None else product + self.bias.float()).to(input.dtype)
        return found


@torch.library.custom_op("specbench::product", mutates_args=())
def product(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns input [..., in] times weight [out, in]. torch.compile does not fuse it; the vendor's library runs it."""
    return functional.linear(input, weight)


@product.register_fake
def _(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


class LongRowLinear(nn.Linear):
    """A linear layer with more inputs than outputs, for a single token: the vendor's library splits long rows."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = product(input, self.weight)
        return found if self.bias is None else found + self.bias


@contextmanager
def one_row_products(layers: Sequence[nn.Module], hidden_size: int) -> Iterator[None]:
    """Turns the linear layers in `layers` into OneRowLinear during the block, or into LongRowLinear if they have more
    than `hidden_size` inputs."""
    changed = [part for layer in layers for part in layer.modules() if type(part) is nn.Linear]
    for part in changed:
        part.__class__ = OneRowLinear if part.in_features <= hidden_size else LongRowLinear
    try:
        yield
    finally:
        for part in changed:
            part.__class__ = nn.Linear
