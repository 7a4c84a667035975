"""Whether other programs load the machine on which a run measures."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from specbench.core.environment import num_sharing
from specbench.models.meters import num_processes_on_gpu

MINUTE = 60.0  # seconds that the system's load average covers
SECONDS = 0.3  # for which the CPU is watched
IDLE = slice(3, 5)  # the columns of /proc/stat with idle time and waits for disks
SPARE = 0.5  # cores by which the load may exceed the CPU without a warning


def load_lines(device: str) -> Iterator[str]:
    """Yields a warning if other programs leave too few CPU cores for this process, and one if other processes use the
    GPU. Yields none if workers share the machine, since their rows say so.

    `device`: the value of --device.
    """
    if num_sharing() > 1:
        return
    load, num_cores, num_threads = others_load(), os.cpu_count() or 1, torch.get_num_threads()
    if load is not None and load + num_threads > num_cores + SPARE:
        yield (
            f"warning: this machine is busy: other programs use {load:.1f} of its {num_cores} CPU cores, and this run "
            f"needs {num_threads}: speeds will be too low and their intervals wide"
        )
    if number := num_gpu_processes(device):
        yield (
            f"warning: the GPU is shared with {number} other process{'es' if number > 1 else ''}: speeds will be too "
            "low while they compute"
        )


def others_load() -> float | None:
    """Returns the number of CPU cores that other programs use now, or their part of the load average of the last
    minute where the system does not count CPU time; None if it has neither."""
    before = cpu_ticks()
    if before is not None:
        time.sleep(SECONDS)
        idle, total = (now - then for now, then in zip(cpu_ticks() or before, before, strict=True))
        if total > 0:
            return (1 - idle / total) * (os.cpu_count() or 1)
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
    return max(0.0, load - min(time.process_time() / MINUTE, torch.get_num_threads()))


def cpu_ticks(stat: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """Returns the idle and the total time of all CPU cores since the system started; None if it does not count it."""
    try:
        name, *ticks = stat.read_text().partition("\n")[0].split()
    except OSError:
        return None
    times = [int(each) for each in ticks[:8]]  # guests' time, which follows, is part of them
    return (sum(times[IDLE]), sum(times)) if name == "cpu" else None


def num_gpu_processes(device: str) -> int:
    """Returns the number of processes that compute on the GPU of --device; 0 if it is unknown, and if this process has
    used a GPU: in a container, NVML lists this process with another id."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cuda") or not torch.cuda.is_available() or torch.cuda.is_initialized():
        return 0
    try:
        return num_processes_on_gpu(torch.cuda._get_nvml_device_index(int(index or 0)))
    except (RuntimeError, ValueError):  # no such GPU, which loading a model reports
        return 0
