"""How GGUF models are loaded."""

from dataclasses import dataclass

from specbench.specs.components import CacheDtype

# The attention of rows, by the type of keys and values.
ATTENTION: dict[CacheDtype, str] = {"float16": "flash, float16 K/V", "float32": "float32 K/V"}


@dataclass(frozen=True)
class GgufOptions:
    """How GGUF models are loaded. `tokenizer`: a folder or hub id whose tokenizer is used; None: the file's.
    `gpu_layers`: the number of layers that a GPU computes; None: all if llama.cpp was built for one and the device is
    not the CPU. `cache_dtype`: the type of keys and values; float32 also leaves flash attention out."""

    tokenizer: str | None = None
    gpu_layers: int | None = None
    cache_dtype: CacheDtype = "float16"
