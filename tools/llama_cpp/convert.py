"""Converts Llama checkpoints with a byte-level BPE tokenizer, as the embedded models are, to llama.cpp's format."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NAMES = {  # of tensors outside the blocks, then of those in a block
    "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Returns the bfloat16 tensors of a safetensors file as float32."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, tensor in header.items():
        assert tensor["dtype"] == "BF16"
        first, last = (start + offset for offset in tensor["data_offsets"])
        high = np.frombuffer(content[first:last], dtype="<u2").astype(np.uint32) << 16
        found[name] = high.view(np.float32).reshape(tensor["shape"])
    return found


def permuted(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """Returns the rows of a query or key projection in llama.cpp's order: it rotates neighbouring pairs of a head, the
    checkpoint its two halves."""
    halves = weights.reshape(num_heads, 2, -1, weights.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weights.shape)


def converted_name(name: str) -> str:
    """Returns llama.cpp's name of a tensor."""
    whole = name.removesuffix(".weight")
    if whole in NAMES:
        return f"{NAMES[whole]}.weight"
    _, _, number, part = whole.split(".", 3)
    return f"blk.{number}.{NAMES[part]}.weight"


def write_gguf(source: Path, path: Path) -> None:
    """Converts a Llama checkpoint with a byte-level BPE tokenizer."""
    config = json.loads((source / "config.json").read_text())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_kv_heads)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, tokenizer, config)
    for name, tensor in read_tensors(source / "model.safetensors").items():
        heads = num_heads if "q_proj" in name else num_kv_heads if "k_proj" in name else None
        writer.add_tensor(converted_name(name), tensor if heads is None else permuted(tensor, heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    vocabulary = {**tokenizer["model"]["vocab"], **{each["content"]: each["id"] for each in tokenizer["added_tokens"]}}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {each["id"] for each in tokenizer["added_tokens"]}
    assert len(tokens) == config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL for number in range(len(tokens))]
    )
    writer.add_token_merges(
        [" ".join(pair) if isinstance(pair, list) else pair for pair in tokenizer["model"]["merges"]]
    )
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
