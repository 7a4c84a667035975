"""CPU threads of this process."""

import os

import torch

from specbench.errors import ConfigError


def set_threads(num_threads: int | None, embedded: bool) -> None:
    """`embedded`: whether the target is. The embedded pair is so small that more than one only adds noise."""
    most = os.cpu_count() or 1
    if num_threads is not None and not 1 <= num_threads <= most:
        raise ConfigError(f"--threads {num_threads}: this machine has {most} CPUs: give 1 to {most}")
    if num_threads is not None or embedded:
        torch.set_num_threads(num_threads or 1)
