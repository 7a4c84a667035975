"""The cache refuses layers whose state cannot be cropped."""

from typing import Any

import pytest
from transformers import AutoConfig

from specbench.errors import ConfigError
from specbench.models.kv_cache import PreallocatedLayer, preallocated_cache

MAMBA: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 64}
MAMBA2: dict[str, Any] = {**MAMBA, "num_heads": 4, "head_dim": 16}
HYBRID: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "intermediate_size": 48, "layer_types": [*["linear_attention"] * 3, "full_attention"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), [("mamba", MAMBA), ("mamba2", MAMBA2), ("qwen3_5_text", HYBRID)])
def test_recurrent_and_hybrid_models_are_refused(kind: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model 'it': layers of kind .* not supported"):
        preallocated_cache(AutoConfig.for_model(kind, **options), "it")


def test_layers_know_their_kind() -> None:
    config = AutoConfig.for_model("gemma3_text", num_hidden_layers=6, sliding_window=8, sliding_window_pattern=3)
    layers = preallocated_cache(config, "it").layers
    assert all(isinstance(layer, PreallocatedLayer) for layer in layers)
    assert {layer.is_sliding for layer in layers} == {True, False}
