"""Loading a model by hub id, local folder, or the name of one that comes with specbench."""

import hashlib
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from specbench.demo.family import member_path
from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM

EMBEDDED = "embedded:"  # what the names of the models that come with specbench begin with
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """`auto`: cuda, else mps, else cpu. Raises ConfigError for a device that is not there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind = name.partition(":")[0]
    if not available.get(kind):
        there = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise ConfigError(f"--device {name}: not available on this machine (available: auto, {there})")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {name}: {str(error).splitlines()[0]}") from error


def load_model(name: str, *, revision: str | None = None, dtype: str = "auto", device: str = "auto") -> CausalLM:
    """Load a model by hub id, local folder, or `embedded:` and the name of a model that comes with specbench.

    `dtype` auto is float32 on a CPU (bfloat16 is slower there and rounds more) and the checkpoint's own elsewhere.
    Raises ConfigError in one line for a folder or hub id that cannot be loaded.
    """
    chosen = choose_device(device)
    if dtype == "auto":
        torch_dtype: Any = torch.float32 if chosen.type == "cpu" else "auto"
    else:
        torch_dtype = DTYPES[dtype]
    source = str(member_path(name.removeprefix(EMBEDDED))) if name.startswith(EMBEDDED) else name
    check_exists(source)
    try:
        config = AutoConfig.from_pretrained(source, revision=revision)
        if config.is_encoder_decoder:
            raise ConfigError(f"model '{name}' is an encoder-decoder; specbench measures causal language models")
        transformers_logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model: Any = AutoModelForCausalLM.from_pretrained(source, revision=revision, dtype=torch_dtype)
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    except ConfigError:
        raise
    except Exception as error:  # whatever a checkpoint, its remote or its file format may raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"cannot load model '{name}': {reason} (give a local folder with config.json, weights and tokenizer, or "
            "a hub id that this machine can reach)"
        ) from error
    commit = getattr(model.config, "_commit_hash", None) or fingerprint(Path(source))
    return CausalLM(model.to(chosen).eval(), tokenizer, name, commit)


def check_exists(name: str) -> None:
    """A path that is written like one must be a folder with a config; anything else is taken for a hub id."""
    path = Path(name)
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or path.exists()
    if not looks_like_path:
        return
    if not path.is_dir():
        raise ConfigError(f"model folder '{name}' does not exist; give a folder with config.json, or a hub id")
    if not (path / "config.json").is_file():
        raise ConfigError(f"model folder '{name}' has no config.json; give a Hugging Face checkpoint folder")


def fingerprint(folder: Path) -> str | None:
    """What identifies a local checkpoint: 12 hex digits over its files' names, sizes, first and last mebibytes."""
    if not folder.is_dir():
        return None
    state = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in {".json", ".safetensors", ".bin", ".model", ".txt", ".jinja"}:
            state.update(f"{path.name} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                state.update(file.read(1 << 20))
                file.seek(max(0, path.stat().st_size - (1 << 20)))
                state.update(file.read())
    return f"local-{state.hexdigest()[:12]}"
