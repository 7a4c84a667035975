"""Which errors say that memory ran out."""

import torch

NO_MEMORY = ("out of memory", "can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Not every error that speaks of memory: an illegal access to it is a defect."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in text for words in NO_MEMORY)


def uploaded(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on `device`. Nobody waits: from memory that is not pinned, a GPU's copy would make the host
    wait for all that is queued. The pinned copy is torch's own and is used again once the GPU has read it."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
