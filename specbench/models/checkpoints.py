"""What is wrong with a checkpoint that could not be loaded: asked only when it could not."""

import hashlib
from pathlib import Path
from textwrap import shorten
from typing import Any

import huggingface_hub
from safetensors import SafetensorError, safe_open

from specbench.core import bounded
from specbench.core.errors import ConfigError

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
MAX_SHOWN = 8  # folders named beside one that is not there


def why_not(name: str, source: str, hub_problem: str | None, error: Exception) -> str:
    """The reason, in one line: the file that is broken, or the folder or hub id that is not there, or the error."""
    folder = Path(source)
    if folder.is_dir():
        return defect(folder) or told(error)
    return ", and ".join(filter(None, (not_here(name), hub_problem))) or told(error)


def told(error: Exception) -> str:
    """An error's own words, cut between two of them."""
    return shorten(str(error), 300, placeholder=" …") or type(error).__name__


def defect(folder: Path) -> str | None:
    """The first file of a folder that cannot be read, or what it lacks; None where nothing is seen."""
    for path in sorted(folder.glob("*.json")):
        try:
            bounded.json_value(bounded.read_text(path, "fetch it again"), strict=False)
        except (ConfigError, ValueError) as error:
            return f"{path.name} is not valid JSON ({error})"
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            return f"{path.name} is broken or not whole ({error})"
    if not any((folder / name).is_file() for name in TOKENIZERS):
        return f"it has no tokenizer (none of {', '.join(TOKENIZERS)})"
    return None


def not_here(name: str) -> str | None:
    """Of what may have been meant as a folder, here or beside one that is there: that it is not."""
    parent = Path(name).parent
    if parent == Path():
        return f"there is no folder '{name}' here"
    if not parent.is_dir():
        return None
    folders = sorted(path.name for path in parent.iterdir() if path.is_dir())
    beside = ", ".join(folders[:MAX_SHOWN]) + ", …" * (len(folders) > MAX_SHOWN) or "no folder"
    return f"there is no folder '{name}' here ({parent} holds {beside})"


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


SUFFIXES = {".json", ".safetensors", ".bin", ".model", ".txt", ".jinja"}


def identified(source: str, revision: str | None) -> str | None:
    """Of a checkpoint that was loaded: its fingerprint, or the commit that `revision` (None: the default branch) is in
    the hub's cache folder; None where neither is known."""
    if Path(source).is_dir():
        return fingerprint(source)
    config = huggingface_hub.try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(config).parent.name if isinstance(config, str) else None


def fingerprint(folder: str) -> str:
    """12 hex digits over the names and contents of a local checkpoint's files."""
    state = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in SUFFIXES:
            with path.open("rb") as file:
                state.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return f"local-{state.hexdigest()[:12]}"
