"""How fast this machine copies memory and multiplies matrices: what the bounds are computed with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from specbench.models.timing import Clock

REPEATS = 7
MOST_BYTES = 2**31  # of a copy's two buffers together
LEAST_BYTES = 2**20
ENOUGH_SECONDS = 0.02  # of one timed round
SIZES = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Rates:
    """`bytes_per_second`, read and written, of a copy whose buffers are together as large as `num_bytes`, so that
    caches help it as much as the weights; `operations_per_second` of a product of matrices."""

    bytes_per_second: float
    num_bytes: int
    operations_per_second: float


def measured_rates(device: torch.device, dtype: torch.dtype, num_bytes: int) -> Rates:
    """The medians of several rounds."""
    num_bytes = max(LEAST_BYTES, min(num_bytes, MOST_BYTES))
    return Rates(copy_rate(device, num_bytes), num_bytes, matmul_rate(device, dtype))


def copy_rate(device: torch.device, num_bytes: int) -> float:
    """Bytes per second, of a copy from one buffer into another of half the size each."""
    source = torch.ones(num_bytes // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second, of the first matrices that keep the device at work long enough."""
    rate = 0.0
    for size in SIZES:
        first, second = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        seconds = seconds_of(lambda a=first, b=second: a @ b, device)  # type: ignore[misc]
        rate = 2.0 * size**3 / seconds
        if seconds >= ENOUGH_SECONDS:
            break
    return rate


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """The median seconds of one call, of rounds that are long enough to be timed."""
    clock = Clock(device)
    run()
    num_calls = max(1, round(ENOUGH_SECONDS / max(1e-9, _round(run, clock, 1))))
    return median(_round(run, clock, num_calls) for _ in range(REPEATS)) / num_calls


def _round(run: Callable[[], object], clock: Clock, num_calls: int) -> float:
    clock.now()
    start = time.perf_counter()
    for _ in range(num_calls):
        run()
    return clock.now() - start
