"""llama.cpp servers inside this process, and the embedded models converted to its format."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gguf
import numpy as np
import xllamacpp

from specbench.embedded import member_path

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


@cache
def gguf_file(name: str) -> Path:
    """Returns an embedded model in llama.cpp's format."""
    path = Path(mkdtemp(prefix="gguf-")) / f"{name}.gguf"
    write_gguf(member_path(name), path)
    return path


DRAFT_MODEL = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
NGRAM = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE


@contextmanager
def llama_cpp_server(
    drafter: str | None = None, num_draft_tokens: int = 5, synthetic_length: float | None = None, num_slots: int = 1,
) -> Iterator[str]:  # fmt: skip
    """Yields the address of a server of an embedded target. `drafter`: an embedded draft model, or "ngram"."""
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf_file("target"))
    params.n_ctx = 2048 * num_slots
    params.n_parallel = num_slots
    params.port = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.verbosity = -1
    if drafter == "ngram":
        params.speculative.types = [NGRAM]
        params.speculative.ngram_simple.size_n = 3
        params.speculative.ngram_simple.size_m = num_draft_tokens
    elif drafter is not None:
        params.speculative.types = [DRAFT_MODEL]
        params.speculative.draft.mparams.path = str(gguf_file(drafter))
        params.speculative.draft.n_max = num_draft_tokens
    if synthetic_length is not None:
        params.speculative.synth_len = synthetic_length
    server = xllamacpp.Server(params)
    try:
        yield server.listening_address
    finally:
        del server
