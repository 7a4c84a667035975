"""Numbers of the host on their way to the device."""

import torch


def uploaded(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on `device`. Nobody waits: from memory that is not pinned, a GPU's copy would make the host
    wait for all that is queued. The pinned copy is torch's own and is used again once the GPU has read it."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
