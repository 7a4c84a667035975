"""CPU threads of this process, and who else measures beside it."""

import os

import torch

from specbench.core.errors import ConfigError

_num_sharing = 1


def set_threads(num_threads: int | None, embedded: bool) -> None:
    """`embedded`: whether the target is. The embedded pair is so small that more than one only adds noise."""
    most = os.cpu_count() or 1
    if num_threads is not None and not 1 <= num_threads <= most:
        raise ConfigError(f"--threads {num_threads}: this machine has {most} CPUs: give 1 to {most}")
    if num_threads is not None or embedded:
        torch.set_num_threads(num_threads or 1)


def share_machine(num_workers: int) -> None:
    """Say how many processes measure on the CPUs of this machine at once, this one among them."""
    global _num_sharing
    _num_sharing = num_workers


def num_sharing() -> int:
    """The processes that measure on the CPUs of this machine at once."""
    return _num_sharing


def called(device: str, num_workers: int) -> str:
    """The name of a machine's CPUs, as rows have it: with the number of workers that share them and slow each other
    down, so that such rows compare with no others."""
    return f"{device}, one of {num_workers} workers" if num_workers > 1 else device
