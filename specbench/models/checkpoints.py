"""Checks of checkpoints, explanations of loading failures, and fingerprints."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import huggingface_hub
from safetensors import SafetensorError, safe_open
from transformers.utils import logging as transformers_logging

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.values import model_digest, text_digest

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
MAX_SHOWN = 8  # existing folders that a message about a missing folder lists


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hides transformers' warnings during the block, which are about its own `generate`; and its progress bars from
    then on, as specbench tells itself what it does."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def explain_failure(name: str, source: str, hub_problem: str | None, error: Exception, files: str) -> str:
    """Returns in one line why loading failed (the broken file, the missing folder or hub id, or the error's message),
    and what to do. `files`: those that a local folder must have."""
    parent = Path(name).parent
    if Path(source).is_dir():
        cause = find_defect(Path(source))
    elif parent.is_dir():
        content = ""
        if parent != Path():
            folders = sorted(path.name for path in parent.iterdir() if path.is_dir())
            existing = ", ".join(folders[:MAX_SHOWN]) + ", …" * (len(folders) > MAX_SHOWN) or "no folder"
            content = f" ({parent} holds {existing})"
        cause = ", and ".join(filter(None, [f"there is no folder '{name}' here{content}", hub_problem]))
    else:  # `name` is probably a hub id
        cause = hub_problem
    remedy = f"give a local folder with {files}, or a hub id that this machine can reach"
    if name.lower().endswith("gguf"):  # a repository of GGUF files, of which none is named
        remedy = f"{remedy}; of a repository of GGUF files, name the quantization: {name}:Q4_K_M"
    return f"{cause or one_line(error)} ({remedy})"


def one_line(error: Exception) -> str:
    """Returns the error's message, shortened at a word boundary; its class name if the message is empty."""
    return shorten(str(error), 300, placeholder=" …") or type(error).__name__


def find_defect(folder: Path) -> str | None:
    """Returns a description of a folder's first unreadable or missing file; None if no defect is found."""
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


# What generation_config.json may ask for besides temperature, top_k and top_p, with the values without effect.
OTHER_SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "min_p": (None, 0.0), "typical_p": (None, 1.0), "top_h": (None,), "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0), "repetition_penalty": (None, 1.0), "encoder_repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0), "bad_words_ids": (None,), "suppress_tokens": (None,), "sequence_bias": (None,),
    "forced_bos_token_id": (None,), "num_beams": (None, 1), "min_length": (None, 0), "min_new_tokens": (None, 0),
}  # fmt: skip


@dataclass(frozen=True)
class CheckpointSampling:
    """The sampling that a checkpoint asks for. `others`: what it also asks for, and specbench does not do. `source`:
    the file or the keys that name it."""

    temperature: float
    top_k: int | None
    top_p: float | None
    others: Mapping[str, object]
    source: str = "generation_config.json"

    @property
    def values(self) -> dict[str, float | int | None]:
        """The values of the keys of a task's generation; None for one that has no effect."""
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.values.items() if value is not None)


def checkpoint_sampling(config: Any) -> CheckpointSampling | None:
    """Returns the sampling of a transformers GenerationConfig; None if it asks for none. A value that it leaves out has
    no effect: transformers itself would add top_k 50."""
    given = {name: getattr(config, name, None) for name in ("temperature", "top_k", "top_p")}
    does_sample = getattr(config, "do_sample", None)
    if does_sample is False or (does_sample is None and not any(value is not None for value in given.values())):
        return None
    others = {name: getattr(config, name, None) for name in OTHER_SAMPLING}
    temperature = given["temperature"]
    return CheckpointSampling(
        temperature=1.0 if temperature is None else temperature, top_k=given["top_k"] or None,
        top_p=None if given["top_p"] in (None, 1.0) else given["top_p"],
        others={name: value for name, value in others.items() if value not in OTHER_SAMPLING[name]},
    )  # fmt: skip


MOST = {
    "vocab_size": 10_000_000, "hidden_size": 1_000_000, "intermediate_size": 10_000_000, "head_dim": 100_000,
    "num_hidden_layers": 1000, "num_attention_heads": 10_000, "num_key_value_heads": 10_000,
    "max_position_embeddings": 2**31 - 1,
}  # fmt: skip
WEIGHTS = ("*.safetensors", "*.bin")
PACKED = 8  # maximum number of quantized weights in a byte


def check_file(path: Path, remedy: str) -> None:
    """Raises ConfigError for a pipe, a device or a folder in place of a file: reading it could block for ever."""
    if not path.is_file():
        raise ConfigError(f"{path}: cannot be read: it is a folder, a pipe or a device, not a file: {remedy}")


def check_files(source: str) -> None:
    """Raises ConfigError if a local folder has a pipe or a device in place of a file of a checkpoint. Hub ids are not
    checked."""
    for path in Path(source).iterdir() if Path(source).is_dir() else ():
        if path.suffix in SUFFIXES and path.exists() and not path.is_dir():
            check_file(path, "restore it from the checkpoint")


def check_readable(source: str) -> None:
    """Raises ConfigError as `check_files` does, and if config.json of a local folder, or its generation_config.json,
    is not a JSON mapping within bounds: transformers would go on without the latter's end tokens. Hub ids are not
    checked."""
    check_files(source)
    if Path(source).is_dir():
        generation = Path(source) / "generation_config.json"
        for path in [Path(source) / "config.json", *([generation] if generation.is_file() else [])]:
            bounded.read_mapping(path, "restore it from the checkpoint", strict=False)


def check_sizes(config: Any) -> None:
    """Raises ConfigError for an implausible size: below 1, above its limit in `MOST`, or not an integer."""
    text = config.get_text_config()
    for name, most in MOST.items():
        value = getattr(text, name, None)
        if value is None or isinstance(value, list | tuple):  # one size per layer
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ConfigError(
                f"{name} = {value!r:.40} in its config.json: it must be a whole number from 1 to {most:,}: restore "
                "the file from the checkpoint"
            )


def check_weights(source: str, config: Any, network: Any) -> None:
    """Raises ConfigError if the weight files of a local folder are too small for `network`, which was built from the
    config on torch's device `meta`."""
    if not Path(source).is_dir():
        return
    num_bytes = sum(path.stat().st_size for pattern in WEIGHTS for path in Path(source).glob(pattern))
    num_values = sum(parameter.numel() for parameter in network.parameters())
    room = num_bytes * (PACKED if getattr(config, "quantization_config", None) else 1)
    if 0 < room < num_values and find_defect(Path(source)) is None:  # a defect has a better message
        raise ConfigError(
            f"its config.json describes {num_values:,} weights, and its weight files have {num_bytes:,} bytes: "
            "restore config.json, or the files that are missing"
        )


SUFFIXES = {".json", ".safetensors", ".bin", ".pt", ".model", ".txt", ".jinja", ".py"}


def checkpoint_identity(source: str, revision: str | None) -> str | None:
    """Returns the identity of a loaded checkpoint: the fingerprint of a local folder, or the commit of `revision`
    (None: the default branch) in the hub's cache. Returns None if neither is known."""
    if Path(source).is_dir():
        return fingerprint(source)
    config = huggingface_hub.try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(config).parent.name if isinstance(config, str) else None


def fingerprint(folder: str) -> str:
    """Returns "local-" and 12 hex digits over the names and contents of a checkpoint's files."""
    files = (path for path in sorted(Path(folder).iterdir()) if path.suffix in SUFFIXES and path.is_file())
    lines = (f"{path.name} {model_digest(path)}\n" for path in files)
    return f"local-{text_digest(''.join(lines))}"
