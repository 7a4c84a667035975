"""Out-of-memory errors and their messages, and copies to a device."""

import re
from collections.abc import Sequence
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
    own = re.search(r"this process has ([\d.]+ ?\w+) memory in use", text)
    parts = [*getattr(error, "__notes__", ())]
    parts += [f"{asked[1]} were asked for"] if asked else []
    parts += [f"{free[1]} were free"] if free else []
    parts += [f"this process held {own[1]}"] if own else []
    return "out of memory" + (f" ({', '.join(parts)})" if parts else "")


BYTES = {"none": None, "int8": 1.0, "nf4": 0.5}  # of a quantized weight
SMALLER = {"--dtype bfloat16": 2.0, "--quantize int8": 1.0, "--quantize nf4": 0.5}  # bytes of a weight
MARGIN = 1.1  # memory that passes and parts without quantization need, over that of the weights


def moved(model: Any, device: torch.device) -> Any:
    """Returns a network on `device`. Raises ConfigError as `too_large` if there is too little memory."""
    try:
        return model.to(device)
    except Exception as error:  # torch raises several classes
        if not is_out_of_memory(error):
            raise
        raise too_large(model, device) from error


def too_large(network: Any, device: torch.device, quantize: str = "none") -> ConfigError:
    """Returns the error for a network whose weights do not fit on a device: what they need, what is free there without
    the weights that are there already, and what would fit."""
    tensors = (*network.parameters(), *network.buffers())
    size = BYTES[quantize]
    need = sum(tensor.numel() * (size or tensor.element_size()) for tensor in tensors)
    text = f"out of memory on {device}: its weights need {gibibytes(need)}"
    if device.type != "cuda":
        return ConfigError(f"{text}: free memory, or take a smaller model, or --dtype bfloat16")
    free = torch.cuda.mem_get_info(device)[0]
    free += sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.device == device)
    return ConfigError(f"{text}, and {gibibytes(free)} are free: {what_fits(tensors, need, free)}")


def what_fits(tensors: Sequence[torch.Tensor], need: float, free: float) -> str:
    """Returns the options with which a target of these weights would fit into the free memory."""
    num_weights = sum(tensor.numel() for tensor in tensors)
    sizes = {option: num_bytes * num_weights for option, num_bytes in SMALLER.items()}
    fitting = [f"{o} ({gibibytes(size)})" for o, size in sizes.items() if size < need and MARGIN * size <= free]
    first = f"a target would fit with {' or '.join(fitting)}; else " if fitting else ""
    return f"{first}free memory, take a smaller model, or spread a target over several devices with --device-map auto"


def gibibytes(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def uploaded(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a copy of a host tensor on `device`, without synchronising. A copy from unpinned memory would make the
    host wait for all queued GPU work. torch owns the pinned copy and reuses it after the GPU has read it."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
