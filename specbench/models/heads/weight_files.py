"""Reads the weight files of draft heads without running code from them."""

import pickle
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from specbench.core.errors import ConfigError
from specbench.models.checkpoints import one_line

Tensors = dict[str, torch.Tensor]
PATTERNS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "*.safetensors", "pytorch_model*.bin")
REMEDY = "restore it from the checkpoint"


def weight_paths(folder: Path) -> list[Path]:
    """Returns the files that match the first possible pattern of `PATTERNS`; none if a folder has no weights."""
    return next(filter(None, (sorted(folder.glob(pattern)) for pattern in PATTERNS)), [])


def tensor_names(paths: Iterable[Path]) -> dict[str, Path]:
    """Returns the file of each tensor by name. Raises ConfigError for a file that cannot be read, and for a name in two
    files."""
    found: dict[str, Path] = {}
    for path in paths:
        for name in _names(path):
            if name in found:
                raise ConfigError(f"{path}: holds {name}, which {found[name].name} holds too: remove one of the files")
            found[name] = path
    return found


def read_tensors(names: dict[str, Path]) -> Tensors:
    """Returns the named tensors of files. Raises ConfigError for a file that cannot be read."""
    tensors: Tensors = {}
    for path in dict.fromkeys(names.values()):
        wanted = [name for name, holder in names.items() if holder == path]
        if path.suffix != ".safetensors":
            pickled = _unpickled(path)
            tensors |= {name: pickled[name] for name in wanted}
            continue
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in wanted}
    return tensors


def _names(path: Path) -> list[str]:
    if path.suffix != ".safetensors":
        return list(_unpickled(path))
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: cannot be read: {one_line(error)}: {REMEDY}") from error


def _unpickled(path: Path) -> Tensors:
    """Returns the tensors of a file that torch.save wrote. Raises ConfigError if it holds anything else."""
    try:
        tensors = _load_pickle(path)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"{path}: refused: it holds more than tensors, and loading it could run code: give a checkpoint with "
            ".safetensors files, or save only the tensors"
        ) from error
    except Exception as error:  # torch raises many classes for broken files
        raise ConfigError(f"{path}: cannot be read: {one_line(error)}: {REMEDY}") from error
    if not isinstance(tensors, dict) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise ConfigError(f"{path}: does not hold a mapping of names to tensors: {REMEDY}")
    return tensors


def _load_pickle(path: Path) -> object:
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"  # files of torch before 1.6 cannot be mapped into memory
    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
