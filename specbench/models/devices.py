"""Out-of-memory errors and their messages, and copies to a device."""

import os
import re
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from specbench.core.errors import NO_MEMORY, ConfigError


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory ran out. Errors such as illegal accesses to memory do not count."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in text for words in NO_MEMORY)


def memory_message(error: BaseException) -> str:
    """Returns one line about an out-of-memory error with the failed operation, the requested memory, the free memory
    and the memory of this process, as far as they are known."""
    text = " ".join(str(error).split())
    parts = [*getattr(error, "__notes__", ())]
    for pattern, wording in (
        (r"[Tt]ried to allocate ([\d.]+ ?\w+)", "{} were requested"),
        (r"of which ([\d.]+ ?\w+) is free", "{} were free"),
        (r"this process has ([\d.]+ ?\w+) memory in use", "this process held {}"),
    ):
        parts += [wording.format(found[1])] if (found := re.search(pattern, text)) else []
    return "out of memory" + (f" ({', '.join(parts)})" if parts else "")


@contextmanager
def noting_memory(place: str, layers: Sequence[Any], device: torch.device) -> Iterator[None]:
    """Adds a note to an out-of-memory error in the block: `place`, and the `cache_room` of attention `layers`."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            error.add_note(place + cache_room(layers, device))
        raise


MARGIN = 1.1  # ratio of the memory with passes to that of the cache


def cache_room(layers: Sequence[Any], device: torch.device) -> str:
    """Returns a phrase about the memory per token in the buffers of a cache and, for a GPU, about the number of tokens
    that would fit into these buffers and the free memory; empty if there are no buffers yet."""
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


def too_large_error(
    network: Any, device: torch.device, quantize: str = "none", device_map: str = "none", free: int | None = None
) -> ConfigError:  # fmt: skip
    """Returns the error for a network whose weights do not fit on `device`, or on all devices if `device_map` is auto.
    It says how much memory they need and how much is free: of main memory `free`, of GPUs including that of the
    network's own weights. It names the options that are not given and would take less."""
    tensors = [*network.parameters(), *network.buffers()]
    is_spread = device_map != "none"
    text = f"out of memory on {'all devices' if is_spread else device}: its weights need "
    text += f"{sum(tensor.nbytes for tensor in tensors) / 2**30:.2f} GiB"
    text += " before they are quantized" if quantize != "none" else ""
    options = ["--dtype bfloat16"] * any(t.is_floating_point() and t.itemsize > 2 for t in tensors)
    if device.type == "cuda":
        options += {"none": ["--quantize int8", "--quantize nf4"], "int8": ["--quantize nf4"]}.get(quantize, [])
        options += ["--device-map auto"] * (not is_spread)
    remedy = "free memory, or take a smaller model"
    if options:
        remedy += ", or load a target with " + " or ".join(filter(None, (", ".join(options[:-1]), options[-1])))
    if device.type != "cuda":
        known = "" if free is None else f", and {free / 2**30:.2f} GiB are free"
        return ConfigError(f"{text}{known}: {remedy}")
    devices = range(torch.cuda.device_count()) if is_spread else (device,)
    free = sum(torch.cuda.mem_get_info(each)[0] for each in devices)
    free += sum(tensor.nbytes for tensor in tensors if tensor.device == device)
    return ConfigError(f"{text}, and {free / 2**30:.2f} GiB are free: {remedy}")


# Bytes of weights, by the open network, that are read from the pages of their file at every pass.
WEIGHTS_IN_FILES: "weakref.WeakKeyDictionary[object, int]" = weakref.WeakKeyDictionary()


def free_memory() -> int | None:
    """Returns the bytes of main memory that this process can still take; None where the system does not tell. Pages of
    files are free to the system. Those of weights are not: without them, every pass would read the disk."""
    available = available_memory()
    return None if available is None else available - sum(WEIGHTS_IN_FILES.values())


def available_memory() -> int | None:
    """Returns the bytes of main memory that the system calls available, with its swap space, or those that a container
    allows, whichever is less; None if the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
        available = 1024 * (kilobytes["MemAvailable"] + kilobytes["SwapFree"])
    except (OSError, KeyError, ValueError):
        return None
    return min(available, *memory_of_groups())


def memory_of_groups(groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Returns the bytes that each control group of this process with a limit, such as a container's, allows beyond what
    it holds. Beyond that Linux ends the process, however much the machine has free. Pages of files are given back."""
    found = []
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:  # version 2
            top, limit, usage, prefix = mounted, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            top, limit, usage, prefix = mounted / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        else:
            continue
        inner = PurePosixPath(name)
        for group in (inner, *inner.parents):  # a container may see its own group as the uppermost, whatever the name
            folder = top / group.relative_to("/")
            try:
                allowed, held = (int((folder / file).read_text(encoding="ascii")) for file in (limit, usage))
                stat = dict(each.split() for each in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            except (OSError, ValueError):  # no such group here, or "max"
                continue
            files = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            found.append(max(0, allowed - held + files))
    return found


def own_memory() -> int:
    """Returns the bytes of main memory that belong to this process alone; 0 where the system does not tell."""
    try:
        _, resident, shared = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split()[:3])
        return (resident - shared) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError):
        return 0


def check_memory(num_bytes: int, what: str, remedy: str, held: int = 0) -> None:
    """Raises ConfigError if `num_bytes` bytes do not fit into the free memory and the `held` bytes that they replace.
    Linux would grant them, and end the process when memory runs out."""
    free = free_memory()
    if free is not None and num_bytes > free + held:
        beside = " beside the weights of open models" if WEIGHTS_IN_FILES else ""
        raise ConfigError(
            f"{what} {num_bytes / 2**30:.2f} GiB of memory, and {max(0, free + held) / 2**30:.2f} GiB are "
            f"free{beside}: free memory, or {remedy}"
        )


def upload(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a host tensor to `device` without synchronising. A copy from unpinned memory would make the host wait for
    all queued GPU work. torch owns the pinned copy and reuses it after the GPU has read it."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
