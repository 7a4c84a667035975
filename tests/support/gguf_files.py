"""GGUF files made at test time: of the embedded models, of random recurrent and hybrid ones, and faulty ones."""

import struct
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gguf
import numpy as np
import pytest
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specbench.embedded import member_path
from tools.llama_cpp.convert import write_gguf

NO_BINDING = "llama-cpp-python is not installed: pip install 'specbench-lm[gguf]' (it is built from source)"


def needs_llama_cpp() -> None:
    """Skips a module's tests without the binding, and says why."""
    pytest.importorskip("llama_cpp", reason=NO_BINDING)


@cache
def folder() -> Path:
    return Path(mkdtemp(prefix="gguf-"))


@cache
def embedded(name: str) -> Path:
    """Returns an embedded model as a GGUF file with float32 weights."""
    path = folder() / f"{name}.gguf"
    write_gguf(member_path(name), path)
    return path


def changed(source: Path, path: Path, old: bytes, new: bytes) -> Path:
    """Writes a copy in which the first `old` is replaced by as many bytes."""
    content = source.read_bytes()
    assert len(old) == len(new) and old in content
    path.write_bytes(content.replace(old, new, 1))
    return path


def retyped(source: Path, path: Path, tensor: str, kind: int) -> Path:
    """Writes a copy in which a tensor has another type."""
    content = bytearray(source.read_bytes())
    place = content.index(struct.pack("<Q", len(tensor)) + tensor.encode()) + 8 + len(tensor)
    (num_dimensions,) = struct.unpack_from("<I", content, place)
    struct.pack_into("<I", content, place + 4 + 8 * num_dimensions, kind)
    path.write_bytes(content)
    return path


def split(source: Path, to: Path, num_tensors: int = 4) -> list[Path]:
    """Writes a model into several files of `num_tensors` tensors, as llama.cpp's tools do. Returns them."""
    reader = gguf.GGUFReader(source)
    copy_into(gguf.GGUFWriter(to / "model.gguf", "llama", split_max_tensors=num_tensors), reader)
    return sorted(to.glob("model-*.gguf"))


def with_floats(source: Path, path: Path, **values: float) -> Path:
    """Writes a copy with more keys of floats, in whose names "__" stands for a dot."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in values.items():
        writer.add_float32(name.replace("__", "."), value)
    copy_into(writer, gguf.GGUFReader(source))
    return path


def rewritten(
    source: Path, path: Path, values: Mapping[str, Any], tensors: Mapping[str, "np.ndarray"] | None = None,
    architecture: str = "llama",
) -> Path:  # fmt: skip
    """Writes a copy with other or more keys, and with more tensors, in float32. A value is a text, a float, None for a
    key that is left out, or has its type of GGUF beside it."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if isinstance(value, tuple):
            writer.add_key_value(key, *value)
        elif value is not None:
            (writer.add_string if isinstance(value, str) else writer.add_float32)(key, value)
    for name, weights in (tensors or {}).items():
        writer.add_tensor(name, weights.astype(np.float32))
    copy_into(writer, gguf.GGUFReader(source), without=values)
    return path


def copy_into(writer: gguf.GGUFWriter, reader: gguf.GGUFReader, without: Collection[str] = ()) -> None:
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture" and key not in without:
            kind, *elements = field.types
            name = key.replace("llama.", f"{writer.arch}.") if key.startswith("llama.") else key
            writer.add_key_value(name, field.contents(), kind, elements[-1] if elements else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@cache
def recurrent() -> Path:
    """Returns a random Mamba."""
    return random_model("mamba", (False, False))


@cache
def hybrid() -> Path:
    """Returns a random Jamba: Mamba's layers, and every other one attention."""
    return random_model("jamba", (False, True, False, True))


def random_model(architecture: str, has_attention: Sequence[bool]) -> Path:
    """Writes a model whose layers have attention or Mamba's states, with a token for each byte, one of two letters, and
    one that ends answers."""
    width, inner, state, conv, rank, heads, key_value_heads = 32, 64, 8, 4, 4, 4, 2
    draw = np.random.default_rng(0).normal
    path = folder() / f"{architecture}.gguf"
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner if any(has_attention) else 0)
    writer.add_head_count(heads if any(has_attention) else 0)
    writer.add_head_count_kv([key_value_heads * each for each in has_attention])
    writer.add_block_count(len(has_attention))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    tokens = [*bytes_to_unicode().values(), "ab", "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)
    of_states = {"ssm_in.weight": (2 * inner, width), "ssm_conv1d.weight": (inner, conv), "ssm_conv1d.bias": (inner,),
                 "ssm_x.weight": (rank + 2 * state, inner), "ssm_dt.weight": (inner, rank), "ssm_dt.bias": (inner,),
                 "ssm_out.weight": (width, inner)}  # fmt: skip
    of_keys = (width // heads * key_value_heads, width)
    of_attention = {"attn_q.weight": (width, width), "attn_k.weight": of_keys, "attn_v.weight": of_keys,
                    "attn_output.weight": (width, width)}  # fmt: skip

    def add(name: str, values: "np.ndarray") -> None:
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", draw(size=(len(tokens), width)))
    add("output_norm.weight", np.ones(width))
    for block, attends in enumerate(has_attention):
        add(f"blk.{block}.attn_norm.weight", np.ones(width))
        for name, shape in (of_attention if attends else of_states).items():
            add(f"blk.{block}.{name}", draw(size=shape) * 0.3)
        if not attends:
            add(f"blk.{block}.ssm_a", -np.exp(draw(size=(inner, state))))
            add(f"blk.{block}.ssm_d", np.ones(inner))
        if any(has_attention):
            add(f"blk.{block}.ffn_norm.weight", np.ones(width))
            for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
                add(f"blk.{block}.ffn_{name}.weight", draw(size=shape) * 0.3)
            if not attends:
                for name, size in (("dt", rank), ("b", state), ("c", state)):
                    add(f"blk.{block}.ssm_{name}_norm.weight", np.ones(size))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
