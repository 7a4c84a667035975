"""CPU threads of this process, and the number of workers that share the machine's CPUs."""

import os

import torch

from specbench.core.errors import ConfigError

_num_sharing = 1


def set_threads(num_threads: int | None, embedded: bool) -> None:
    """Sets torch's number of CPU threads. `embedded`: whether the target is an embedded model. The default is then 1,
    since more threads only add noise to such a small model. Raises ConfigError for a number below 1 or above the number
    of CPUs."""
    num_cpus = os.cpu_count() or 1
    if num_threads is not None and not 1 <= num_threads <= num_cpus:
        raise ConfigError(f"--threads {num_threads}: this machine has {num_cpus} CPUs: give 1 to {num_cpus}")
    if num_threads is not None or embedded:
        torch.set_num_threads(num_threads or 1)


def share_machine(num_workers: int) -> None:
    """Sets the number of processes that measure on the CPUs of this machine at the same time, including this one."""
    global _num_sharing
    _num_sharing = num_workers


def num_sharing() -> int:
    """Returns the number of processes that measure on the CPUs of this machine at the same time."""
    return _num_sharing


def called(device: str, num_workers: int) -> str:
    """Returns a device name for rows that includes the number of workers that share the device. Workers slow each other
    down, so such rows are compared only with rows of as many workers."""
    return f"{device}, one of {num_workers} workers" if num_workers > 1 else device
