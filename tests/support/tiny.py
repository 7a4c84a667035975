"""Tiny random Hugging Face models and a byte-level tokenizer, made in memory or saved to a folder."""

import copy
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from specbench.models.causal_lm import CausalLM

COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GATED_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "mistral": {"sliding_window": 8},
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"] * 2, **GATED_DELTA},
    "mamba2": {"state_size": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 4},
    "mamba": {"state_size": 8},
}


def two_layers(kind: str) -> dict[str, Any]:
    """Options of a model with two layers, one of each type that the kind has."""
    types = KINDS.get(kind, {}).get("layer_types")
    return {"num_hidden_layers": 2} | ({"layer_types": types[:2]} if types else {})


def tokenizer(num_extra: int = 0) -> PreTrainedTokenizerFast:
    """One token per byte, `<|end|>`, and `num_extra` tokens that no text contains."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    vocabulary |= {f"<extra{i}>": len(alphabet) + i for i in range(num_extra)}
    backend = Tokenizer(models.BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def network(kind: str = "llama", seed: int = 0, **overrides: Any) -> Any:
    """A random model in float32; without overrides its output is as wide as `tokenizer()`. It is a copy of the one that
    was made first, and leaves torch's generator as making it anew would."""
    key = repr((kind, seed, sorted(overrides.items())))
    if key not in _made:
        _made[key] = _new_network(kind, seed, overrides), torch.get_rng_state()
    first, state = _made[key]
    torch.set_rng_state(state)
    return copy.deepcopy(first)


_made: dict[str, tuple[Any, torch.Tensor]] = {}


def _new_network(kind: str, seed: int, overrides: dict[str, Any]) -> Any:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**COMMON, "vocab_size": 257, **KINDS.get(kind, {}), **overrides})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def causal_lm(kind: str = "llama", seed: int = 0, **overrides: Any) -> CausalLM:
    return CausalLM(network(kind, seed, **overrides), tokenizer(), f"tiny-{kind}", None)


def save(folder: Path, kind: str = "llama", seed: int = 0, num_extra: int = 0, **overrides: Any) -> Path:
    """A checkpoint folder with config, weights and tokenizer."""
    made = tokenizer(num_extra)
    network(kind, seed, vocab_size=len(made), **overrides).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder
