"""Which errors say that memory ran out, and what they say of it; copies to a device."""

import re
from typing import Any

import torch

from specbench.core.errors import ConfigError

NO_MEMORY = ("out of memory", "can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Not every error that speaks of memory: an illegal access to it is a defect."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in text for words in NO_MEMORY)


def memory_told(error: BaseException) -> str:
    """Returns what ran out of memory, in one line: what was being done, where that is known, the memory that was asked
    for and the memory that was free."""
    text = " ".join(str(error).split())
    asked = re.search(r"[Tt]ried to allocate ([\d.]+ ?\w+)", text)
    free = re.search(r"of which ([\d.]+ ?\w+) is free", text)
    parts = [*getattr(error, "__notes__", ())]
    parts += [f"{asked[1]} were asked for"] if asked else []
    parts += [f"{free[1]} were free"] if free else []
    return "out of memory" + (f" ({', '.join(parts)})" if parts else "")


def moved(model: Any, device: torch.device) -> Any:
    """Returns a network on `device`. Raises ConfigError, which tells the memory that it needs, where that is not
    free."""
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
    """Returns the memory that is free on a GPU, in words; nothing for other devices."""
    if device.type != "cuda":
        return ""
    return f", and {gibibytes(torch.cuda.mem_get_info(device)[0])} are free"


def gibibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def uploaded(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on `device`. Nobody waits: from memory that is not pinned, a GPU's copy would make the host
    wait for all that is queued. The pinned copy is torch's own and is used again once the GPU has read it."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
