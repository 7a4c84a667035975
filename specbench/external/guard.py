"""What stands around external code: its errors in one line, and random streams of its own."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from specbench.errors import ConfigError
from specbench.models.memory import is_out_of_memory
from specbench.specs import MethodSpec


@contextmanager
def blaming(method: MethodSpec) -> Iterator[None]:
    """Whatever the block raises is the method's own defect: one line that names it, and where it was raised."""
    assert method.decoder is not None
    place = f"method '{method.name}': decoder.entry = '{method.decoder.entry}'"
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if not {"torch", "transformers"} & set(Path(f.filename).parts)]
        frame = (own or list(frames))[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        raise ConfigError(f"{place} raised {type(error).__name__}: {error} ({where})") from error


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's own generators, seeded inside the block and as they were behind it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
