"""Out-of-memory errors and their messages, and copies to a device."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def noting_memory(place: str, layers: Sequence[Any], device: torch.device) -> Iterator[None]:
    """Adds a note to an out-of-memory error in the block: `place`, what a token takes in the cache, whose attention
    layers are given, and, where the free memory is known, how many tokens would fit."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            error.add_note(place + cache_room(layers, device))
        raise


def cache_room(layers: Sequence[Any], device: torch.device) -> str:
    """Returns what a token takes in the buffers of a cache, and how many tokens would fit if they had all memory that
    they have and that is free; nothing before there are buffers."""
    buffers = [buffer for layer in layers for buffer in (layer.keys, layer.values) if buffer is not None]
    if not buffers:
        return ""
    sizes = [buffer.numel() * buffer.element_size() for buffer in buffers]
    each = sum(size / buffer.shape[2] for size, buffer in zip(sizes, buffers, strict=True)) / len(buffers)
    per_token = 2 * len(layers) * each
    text = f"; a token takes {per_token / 2**10:.1f} KiB of its cache"
    if device.type != "cuda":
        return text
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    num_tokens = int((free + sum(sizes)) / (MARGIN * per_token))
    return f"{text}, so that prompt and answer of about {num_tokens} tokens would fit"


BYTES = {"int8": 1.0, "nf4": 0.5}  # of a quantized weight
MARGIN = 1.1  # memory that passes and the scales of quantized weights need, over that of the weights


def moved(model: Any, device: torch.device) -> Any:
    """Returns a network on `device`. Raises ConfigError as `too_large` if there is too little memory."""
    try:
        return model.to(device)
    except Exception as error:  # torch raises several classes
        if not is_out_of_memory(error):
            raise
        raise too_large(model, device) from error


def too_large(network: Any, device: torch.device, quantize: str = "none") -> ConfigError:
    """Returns the error for a network whose weights do not fit on a device: what they need, its free memory (with the
    network's own weights counted as free), and what would fit."""
    need = num_bytes(network, quantize)
    smaller = {"--dtype bfloat16": num_bytes(network, most=2)}
    text = f"out of memory on {device}: its weights need {gibibytes(need)}"
    if device.type != "cuda":
        dtypes = "".join(f", or {option}" for option, size in smaller.items() if size < need)
        return ConfigError(f"{text}: free memory, or take a smaller model{dtypes}")
    free = torch.cuda.mem_get_info(device)[0]
    free += sum(each.numel() * each.element_size() for each in tensors_of(network) if each.device == device)
    smaller |= {f"--quantize {each}": num_bytes(network, each) for each in BYTES}
    fitting = [f"{o} ({gibibytes(size)})" for o, size in smaller.items() if size < need and MARGIN * size <= free]
    first = f"a target would fit with {' or '.join(fitting)}; else " if fitting else ""
    return ConfigError(
        f"{text}, and {gibibytes(free)} are free: {first}free memory, take a smaller model, or spread a target over "
        "several devices with --device-map auto"
    )


def tensors_of(network: Any) -> list[torch.Tensor]:
    """Returns the weights and buffers of a network."""
    return [*network.parameters(), *network.buffers()]


def num_bytes(network: Any, quantize: str = "none", most: int = 8) -> float:
    """Returns the bytes of a network's weights and buffers, with at most `most` for a number. Quantization leaves all
    but the weights of linear layers as they are, and the output layer too."""
    output = network.get_output_embeddings() if hasattr(network, "get_output_embeddings") else None
    layers = [each for each in network.modules() if isinstance(each, torch.nn.Linear) and each is not output]
    linear = {id(layer.weight) for layer in layers} if quantize != "none" else set()
    return sum(
        tensor.numel() * (BYTES[quantize] if id(tensor) in linear else min(most, tensor.element_size()))
        for tensor in tensors_of(network)
    )


def gibibytes(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def uploaded(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a copy of a host tensor on `device`, without synchronising. A copy from unpinned memory would make the
    host wait for all queued GPU work. torch owns the pinned copy and reuses it after the GPU has read it."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
