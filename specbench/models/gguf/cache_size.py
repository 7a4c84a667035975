"""The memory of llama.cpp's keys and values, from a file's header."""

from collections.abc import Sequence

import numpy as np

from specbench.models.gguf.header import Header
from specbench.specs.components import CacheDtype

BYTES = {"float16": 2, "float32": 4}


def cache_bytes(header: Header, num_tokens: int, kind: CacheDtype) -> int:
    """Returns the bytes of keys and values of `num_tokens` tokens; 0 for a model without attention. Layers with a
    sliding window have as many tokens as the others, since the engine keeps their history (`swa_full`)."""
    number = _numbers(header, "block_count", 1)[0] - _numbers(header, "nextn_predict_layers", 1)[0]
    number -= _numbers(header, "attention.shared_kv_layers", 1)[0]  # the last ones read those of earlier layers
    if number <= 0:
        return 0
    heads = _numbers(header, "attention.head_count", number)
    key_value_heads = _numbers(header, "attention.head_count_kv", number) if (
        header.of_architecture("attention.head_count_kv") is not None
    ) else heads  # fmt: skip
    width = _numbers(header, "embedding_length", 1)[0] // max(1, *heads)
    has_window = _windows(header, number)
    total = 0
    for name in ("key_length", "value_length"):
        if name == "value_length" and header.of_architecture("attention.key_length_mla"):
            continue  # latent attention: values are a part of the keys
        full = header.of_architecture(f"attention.{name}") or width
        windowed = header.of_architecture(f"attention.{name}_swa") or full
        total += sum(
            count * int(windowed if window else full)
            for count, window in zip(key_value_heads, has_window, strict=True)
        )  # fmt: skip
    return total * num_tokens * BYTES[kind]


def _numbers(header: Header, key: str, length: int) -> list[int]:
    """Returns a value for each of the first `length` layers; 0 where the header lacks it."""
    value = header.of_architecture(key)
    if isinstance(value, Sequence | np.ndarray):
        return [*map(int, value[:length]), *[0] * (length - len(value))]
    return [int(value or 0)] * length


def _windows(header: Header, number: int) -> list[bool]:
    """Returns which layers have a sliding window. Of a period n, all but each nth have one."""
    pattern = header.of_architecture("attention.sliding_window_pattern")
    if isinstance(pattern, int):
        return [layer % pattern < pattern - 1 for layer in range(number)] if pattern else [False] * number
    return [bool(each) for each in _numbers(header, "attention.sliding_window_pattern", number)]
