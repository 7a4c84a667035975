"""Clocks: wall time at synchronised points, and the time of single forward passes without synchronising them."""

import time
from typing import Any

import torch


class Clock:
    """Marks on the device's own time line: events on cuda and mps, the process clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._events: Any = {"cuda": torch.cuda, "mps": torch.mps}.get(device.type)

    def mark(self) -> Any:
        """A point in the device's stream of work; two of them give seconds with `between`."""
        if self._events is None:
            return time.perf_counter()
        # torch.mps has its event class in a submodule, torch.cuda at the top.
        make = torch.cuda.Event if self.device.type == "cuda" else torch.mps.event.Event
        event: Any = make(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Seconds between two marks; on an accelerator only valid after `now`."""
        if self._events is None:
            return float(end - start)
        return float(start.elapsed_time(end)) / 1000.0

    def now(self) -> float:
        """Process seconds with all queued device work done."""
        if self._events is not None:
            self._events.synchronize()
        return time.perf_counter()


class PassLog:
    """The forward passes of one model since the last `clear`: query length and the marks around each."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._passes: list[tuple[int, Any, Any]] = []

    def clear(self) -> None:
        self._passes = []

    def add(self, query_length: int, start: Any, end: Any) -> None:
        self._passes.append((query_length, start, end))

    def read(self) -> list[tuple[int, float]]:
        """(query length, seconds) of each pass; call after `Clock.now`, outside of any measured region."""
        return [(length, self.clock.between(start, end)) for length, start, end in self._passes]
