"""The public models of the page: where their weights come from, and what their folders are called in rows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RealModel:
    """`folder`: its name in MODELS_DIR. `shown`: its name in rows, which says how the weights were made. `hub`: the
    model on the hub that it stands for. `source`: the words of the page. `ms`: rough milliseconds of a pass on two
    threads. `unnamed_end`: an end token of the hub's release, with its text, that the folder's generation_config.json,
    which was made from a GGUF key, does not name."""

    folder: str
    shown: str
    hub: str
    source: str
    ms: float
    unnamed_end: tuple[int, str] | None = None

    @property
    def path(self) -> str:
        """The path in the work folder, as command lines and rows have it."""
        return f"models/{self.shown}"


ENDOFTEXT = (151643, "<|endoftext|>")
QWEN = RealModel(
    "qwen-coder-1.5b", "Qwen2.5-Coder-1.5B-Instruct-dequantized-from-Q4_K_M", "Qwen/Qwen2.5-Coder-1.5B-Instruct",
    "dequantized from a Q4_K_M file", 77, ENDOFTEXT,
)  # fmt: skip
QWEN_DRAFTER = RealModel(
    "qwen-coder-0.5b", "Qwen2.5-Coder-0.5B-Instruct-dequantized-from-AWQ-Q4_K_M", "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    "dequantized from a Q4_K_M file, which was made from an AWQ release", 30, ENDOFTEXT,
)  # fmt: skip
SMOLLM = RealModel(
    "smollm2-135m", "SmolLM2-135M-Instruct-dequantized-from-Q4_1", "HuggingFaceTB/SmolLM2-135M-Instruct",
    "dequantized from a Q4_1 file", 10,
)  # fmt: skip
GEMMA = RealModel(
    "gemma3-270m", "gemma-3-270m-dequantized-from-Q4_K_M", "google/gemma-3-270m", "dequantized from a Q4_K_M file", 15,
)  # fmt: skip
QWEN_GGUF = RealModel(
    "qwen-coder-1.5b.gguf", "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
    "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M", "the Q4_K_M file itself", 30,
)  # fmt: skip
QWEN_DRAFTER_GGUF = RealModel(
    "qwen-coder-0.5b.gguf", "Qwen2.5-Coder-0.5B-Instruct-from-AWQ-Q4_K_M.gguf",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M", "the Q4_K_M file itself, which was made from an AWQ release", 18,
)  # fmt: skip
MODELS = (QWEN, QWEN_DRAFTER, SMOLLM, GEMMA, QWEN_GGUF, QWEN_DRAFTER_GGUF)
