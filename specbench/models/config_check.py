"""Whether a checkpoint's config.json says sizes that its weights can have: asked before anything is allocated."""

from pathlib import Path
from typing import Any

from specbench import bounded
from specbench.errors import ConfigError
from specbench.models.checkpoint import defect

MOST = {
    "vocab_size": 10_000_000, "hidden_size": 1_000_000, "intermediate_size": 10_000_000, "head_dim": 100_000,
    "num_hidden_layers": 1000, "num_attention_heads": 10_000, "num_key_value_heads": 10_000,
    "max_position_embeddings": 2**31 - 1,
}  # fmt: skip
WEIGHTS = ("*.safetensors", "*.bin")
PACKED = 8  # values in a byte of quantized weights, at most


def check_readable(source: str) -> None:
    """Raise ConfigError for a config.json of a folder that is no JSON within bounds. A hub id is left to the hub."""
    if Path(source).is_dir():
        bounded.read_mapping(Path(source) / "config.json", "restore it from the checkpoint", strict=False)


def check_sizes(config: Any) -> None:
    """Raise ConfigError for a size that no network has: below 1, beyond `MOST`, or no whole number."""
    text = config.get_text_config()
    for name, most in MOST.items():
        value = getattr(text, name, None)
        if value is None or isinstance(value, list | tuple):  # a size for each layer
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ConfigError(
                f"{name} = {value!r:.40} in its config.json: it must be a whole number from 1 to {most:,}: restore "
                "the file from the checkpoint"
            )


def check_weights(source: str, config: Any, network: Any) -> None:
    """Raise ConfigError where the files of a folder are too small for the network that the config describes.
    `network`: on torch's device `meta`."""
    if not Path(source).is_dir():
        return
    num_bytes = sum(path.stat().st_size for pattern in WEIGHTS for path in Path(source).glob(pattern))
    num_values = sum(parameter.numel() for parameter in network.parameters())
    room = num_bytes * (PACKED if getattr(config, "quantization_config", None) else 1)
    if 0 < room < num_values and defect(Path(source)) is None:  # else the files themselves are broken
        raise ConfigError(
            f"its config.json describes {num_values:,} weights, and its weight files have {num_bytes:,} bytes: "
            "restore config.json, or the files that are missing"
        )
