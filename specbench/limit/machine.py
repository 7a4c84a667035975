"""How fast this machine copies and reads memory and multiplies matrices: what the bounds are computed with."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from specbench.models.timing import Clock

MOST_BYTES = 2**31
LEAST_BYTES = 2**20
ENOUGH_SECONDS = 0.02  # of one timed round
SIZES = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Rates:
    """Of one round: `bytes_per_second`, read and written, of a copy; `read_bytes_per_second` of a sum, which writes
    nothing; `operations_per_second` of a product of matrices."""

    bytes_per_second: float
    read_bytes_per_second: float
    operations_per_second: float


class Gauge:
    """Measures rates with one buffer of `num_bytes`, which is copied from one half into the other and summed up: caches
    help both as much as a pass that reads as many; and with the first matrices that keep the device at work."""

    def __init__(self, device: torch.device, dtype: torch.dtype, num_bytes: int) -> None:
        self.num_bytes = max(LEAST_BYTES, min(num_bytes, MOST_BYTES)) // 16 * 16
        clock = Clock(device)
        whole = torch.ones(self.num_bytes // 8, dtype=torch.int64, device=device)
        source, target = whole.chunk(2)
        self._copy = Repeated(lambda: target.copy_(source), clock)
        self._read = Repeated(whole.sum, clock)
        for self._size in SIZES:
            first, second = (torch.randn(self._size, self._size, device=device).to(dtype) for _ in range(2))
            self._product = Repeated(lambda a=first, b=second: a @ b, clock)  # type: ignore[misc]
            if self._product.num_calls == 1:
                break

    def rates(self) -> Rates:
        """One round of each."""
        return Rates(
            bytes_per_second=self.num_bytes / self._copy.seconds(),
            read_bytes_per_second=self.num_bytes / self._read.seconds(),
            operations_per_second=2.0 * self._size**3 / self._product.seconds(),
        )


class Repeated:
    """A call, in rounds of so many that they are long enough to be timed."""

    def __init__(self, call: Callable[[], object], clock: Clock) -> None:
        self._call, self._clock = call, clock
        self.num_calls = 1
        self.seconds()  # the first is another
        self.num_calls = max(1, round(ENOUGH_SECONDS / max(1e-9, self.seconds())))

    def seconds(self) -> float:
        """Of one call, by a round."""
        start = self._clock.now()
        for _ in range(self.num_calls):
            self._call()
        return (self._clock.now() - start) / self.num_calls
