"""The cache knows its layers, and refuses those without a way back."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.cache_utils import LinearAttentionLayer

from specbench.core.errors import ConfigError
from specbench.models.kv_cache import HybridLayer, PreallocatedLayer, preallocated_cache

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}


def kinds(name: str, **options: Any) -> list[str]:
    cache = preallocated_cache(AutoConfig.for_model(name, **SMALL, **options), "it")
    return [type(layer).__name__ for layer in cache.layers]


def test_kinds_of_layers() -> None:
    linear, attention = LinearAttentionLayer.__name__, PreallocatedLayer.__name__
    assert kinds("mamba") == kinds("mamba2", num_heads=4, head_dim=16) == [linear, linear]
    assert kinds("qwen3_5_text", layer_types=["linear_attention", "full_attention"]) == [linear, attention]
    assert kinds("falcon_h1") == [HybridLayer.__name__] * 2


def test_layers_without_a_way_back_are_refused() -> None:
    config = AutoConfig.for_model("llama", **SMALL, num_attention_heads=4)
    for layer_type, kind in (("indexed_attention", "DynamicIndexedLayer"), ("unheard_of", "unheard_of")):
        config.layer_types = [layer_type] * 2
        with pytest.raises(ConfigError, match=rf"model 'it': layers of kind {kind} are not supported"):
            preallocated_cache(config, "it")


def test_layers_know_their_kind() -> None:
    config = AutoConfig.for_model("gemma3_text", num_hidden_layers=6, sliding_window=8, sliding_window_pattern=3)
    layers = preallocated_cache(config, "it").layers
    assert all(isinstance(layer, PreallocatedLayer) for layer in layers)
    assert {layer.is_sliding for layer in layers} == {True, False}


def test_rows_follow_the_cached_one_and_are_not_kept() -> None:
    layer, one, rows = PreallocatedLayer(is_sliding=False), torch.rand(1, 2, 3, 4), torch.rand(5, 2, 2, 4)
    assert torch.equal(layer.update(rows, rows)[0], rows)
    layer.update(one, one)
    keys, values = layer.update(rows, 2 * rows)
    assert torch.equal(keys, torch.cat([one.expand(5, -1, -1, -1), rows], dim=-2))
    assert torch.equal(values[:, :, 3:], 2 * rows)
    assert layer.get_seq_length() == 3
