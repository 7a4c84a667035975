"""How GGUF models are loaded."""

from dataclasses import dataclass
from typing import Literal

from specbench.specs.components import CacheDtype, EngineName

# The attention of rows, by the type of keys and values.
ATTENTION: dict[CacheDtype, str] = {"float16": "flash, float16 K/V", "float32": "float32 K/V"}
# What to do about a file that cannot be used as it is, by what named it.
OTHER_ENGINE = {
    "options": "take --engine {}",
    "run": "measure again with --engine {}",
    "name": "give the original model's folder or hub id instead of the file",
}
OTHER_TOKENIZER = {
    "options": "give the one of the original model with {}",
    "run": "measure again with the one of the original model as {}",
    "name": OTHER_ENGINE["name"],
}


@dataclass(frozen=True)
class GgufOptions:
    """How GGUF models are loaded. `tokenizer`: a folder or hub id whose tokenizer is used; None: the file's.
    `gpu_layers`: the number of layers that a GPU computes; None: all if llama.cpp was built for one and the device is
    not the CPU. `cache_dtype`: the type of keys and values; float32 also leaves flash attention out. `given_by`: a
    command with these options and --engine, a run that had them, or a command that takes a model's name alone.
    `tokenizer_option`: the option that gives `tokenizer`."""

    tokenizer: str | None = None
    gpu_layers: int | None = None
    cache_dtype: CacheDtype = "float16"
    given_by: Literal["options", "run", "name"] = "name"
    tokenizer_option: Literal["--tokenizer", "--drafter-tokenizer"] = "--tokenizer"

    def other_engine(self, engine: EngineName) -> str:
        """Returns the advice to compute otherwise, in terms of what the command takes."""
        return OTHER_ENGINE[self.given_by].format(engine)

    @property
    def other_tokenizer(self) -> str:
        """The advice to take another tokenizer than the file's, in terms of what the command takes."""
        return OTHER_TOKENIZER[self.given_by].format(self.tokenizer_option)
