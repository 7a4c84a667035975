"""Out-of-memory errors and their messages, and copies to a device."""

import re
from typing import Any

import torch

from specbench.core.errors import ConfigError

NO_MEMORY = ("out of memory", "can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether memory ran out. Other errors that mention memory, such as illegal accesses, are defects."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in text for words in NO_MEMORY)


def memory_message(error: BaseException) -> str:
    """Returns one line about an out-of-memory error with, where known, the failed operation, the requested memory and
    the free memory."""
    text = " ".join(str(error).split())
    asked = re.search(r"[Tt]ried to allocate ([\d.]+ ?\w+)", text)
    free = re.search(r"of which ([\d.]+ ?\w+) is free", text)
    parts = [*getattr(error, "__notes__", ())]
    parts += [f"{asked[1]} were asked for"] if asked else []
    parts += [f"{free[1]} were free"] if free else []
    return "out of memory" + (f" ({', '.join(parts)})" if parts else "")


def moved(model: Any, device: torch.device) -> Any:
    """Returns a network on `device`. Raises ConfigError with the required memory if there is too little."""
    try:
        return model.to(device)
    except Exception as error:  # torch raises several classes
        if not is_out_of_memory(error):
            raise
        tensors = (*model.parameters(), *model.buffers())
        need = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        raise ConfigError(
            f"out of memory on {device}: its weights need {gibibytes(need)}{free_on(device)}: free memory, or take a "
            "smaller model, or --dtype bfloat16"
        ) from error


def free_on(device: torch.device) -> str:
    """Returns the free memory of a GPU as text; an empty text for other devices."""
    if device.type != "cuda":
        return ""
    return f", and {gibibytes(torch.cuda.mem_get_info(device)[0])} are free"


def gibibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def uploaded(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a copy of a host tensor on `device`, without synchronising. A copy from unpinned memory would make the
    host wait for all queued GPU work. torch owns the pinned copy and reuses it after the GPU has read it."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
