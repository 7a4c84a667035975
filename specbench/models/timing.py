"""Clocks: wall time at synchronised points, and times of single forward passes without synchronisation."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

WAITS = Path("/proc/thread-self/schedstat")  # nanoseconds on a CPU, nanoseconds of waiting for a CPU, time slices


class HostClock:
    """The wall clock of the host. After `leave_out_waits` it stops while this thread is ready to run but waits for a
    CPU, so that other work on the machine does not count. Sleeping, input and output count."""

    def __init__(self) -> None:
        self._file: int | None = None

    @property
    def leaves_out_waits(self) -> bool:
        return self._file is not None

    def leave_out_waits(self, waits: Path = WAITS) -> None:
        """Leaves out waits from now on, if the system counts them, as Linux does. Only times of the calling thread are
        right afterwards."""
        with suppress(OSError, IndexError, ValueError):
            file = os.open(waits, os.O_RDONLY)
            waited_seconds(file)
            self._file = file

    def now(self) -> float:
        """Returns the clock in seconds."""
        if self._file is None:
            return time.perf_counter()
        while True:
            before, now = waited_seconds(self._file), time.perf_counter()
            if waited_seconds(self._file) == before:  # there was no wait between the two readings
                return now - before


def waited_seconds(file: int) -> float:
    """Returns the seconds for which a thread has waited for a CPU. `file`: the descriptor of its file WAITS."""
    return int(os.pread(file, 100, 0).split()[1]) / 1e9


HOST = HostClock()


class Clock:
    """The clock of a device: events on cuda and mps, the process clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._has_events = device.type in ("cuda", "mps")

    def mark(self) -> Any:
        """Marks the current point in the device's stream of work, for `between`."""
        if not self._has_events:
            return HOST.now()
        if self.device.type == "cuda":
            event: Any = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
        else:
            event = torch.mps.event.Event(enable_timing=True)
            event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Returns the seconds between two marks; on an accelerator they are valid only after `now`."""
        if not self._has_events:
            return float(end - start)
        return float(start.elapsed_time(end)) / 1000.0

    def now(self) -> float:
        """Waits for all queued device work. Returns the process clock in seconds."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter() if self._has_events else HOST.now()


class PassLog:
    """The forward passes of a model since the last `clear`, with query lengths and time marks, and the time marks of
    each choice of tokens from logits (by a verification rule or a draw)."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.clear()

    def clear(self) -> None:
        self._passes: list[tuple[int, Any, Any, int]] = []
        self._choices: list[tuple[Any, Any]] = []

    @property
    def num_passes(self) -> int:
        return len(self._passes)

    def add(self, query_length: int, start: Any, end: Any) -> None:
        self._passes.append((query_length, start, end, 1))

    def add_together(self, query_lengths: Sequence[int], start: Any, end: Any) -> None:
        """Adds passes without marks in between. Each gets an equal share of the seconds, which include the draws."""
        self._passes += [(length, start, end, len(query_lengths)) for length in query_lengths]

    def add_choice(self, start: Any, end: Any) -> None:
        self._choices.append((start, end))

    def choice_seconds(self) -> float:
        """Returns the seconds of all choices. Call it after `Clock.now`, like `read`."""
        return sum(self.clock.between(start, end) for start, end in self._choices)

    def read(self) -> list[tuple[int, float]]:
        """Returns (query length, seconds) of each pass. Call it after `Clock.now`, outside measured regions."""
        return [(length, self.clock.between(start, end) / number) for length, start, end, number in self._passes]


class Stopwatch:
    """Adds up host seconds spent in `with` blocks, for example in tokenizers, which run on the host."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def clear(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = HOST.now()

    def __exit__(self, *problem: object) -> None:
        self.seconds += HOST.now() - self._start
