"""The lines of a run on stderr: warnings of other load on the machine, and the progress, a bar on a terminal."""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console, RenderableType
from rich.progress import MofNCompleteColumn

from specbench.core.console import say, speed_text
from specbench.core.environment import num_sharing
from specbench.core.errors import INTERRUPTED, ConfigError
from specbench.core.progress import ProgressBar
from specbench.models.devices import is_out_of_memory, memory_message
from specbench.models.meters import num_processes_on_gpu
from specbench.records.generation import Record


class RunProgress(ProgressBar):
    """Counts blocks, and shows the current subset, the tokens/s and acceptance rate of every method so far, and the
    time left, warm-ups included. `above`: returns what a terminal shows above the bar. `num_subsets`: the number to be
    measured, each after a warm-up."""

    def __init__(
        self, console: Console, num_blocks: int, above: Callable[[], Iterable[RenderableType]] | None = None,
        num_subsets: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(console, "warming up", num_blocks, MofNCompleteColumn(), above=above)
        self.num_blocks = num_blocks
        self.num_done = self.num_measured = 0
        self._reported = time.monotonic()
        self.num_subsets = num_subsets
        self._warm_ups: dict[str, float] = {}  # seconds before the first measured block of each subset
        self._measuring = 0.0  # seconds
        self._tokens: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)
        self._rates: dict[str, list[float]] = defaultdict(list)

    def wait(self, number: int) -> None:
        """Returns at once, since no other process takes turns with this one."""

    def report(self, where: str, record: Record, measured: bool) -> None:
        """Counts one recorded block. `measured`: False if it was measured by an earlier run."""
        self.num_done += 1
        self.num_measured += measured
        for name, result in record.methods.items():
            self._tokens[name] += result.num_new_tokens - 1
            self._seconds[name] += result.decode_seconds
            if result.num_verified and not result.is_tree:
                self._rates[name].append(result.num_accepted / result.num_verified)
        self._take_time(where, record, measured)
        line = f"{where} · {self.summary()}{self._time_left()}"
        is_due = (measured and self.num_measured == 1) or self.num_done == self.num_blocks
        self.update(line, self.num_done, f"{self.num_done}/{self.num_blocks} {line}", is_due)

    def _take_time(self, where: str, record: Record, measured: bool) -> None:
        """Adds the time that a block took. For the first block of a subset adds the recorded seconds instead: the rest
        of the time is that of the warm-up, or of reading old records."""
        now = time.monotonic()
        if measured and where in self._warm_ups:
            self._measuring += now - self._reported
        elif measured:
            seconds = sum((g.ttft_seconds or 0.0) + g.decode_seconds for g in record.methods.values())
            self._measuring += seconds
            self._warm_ups[where] = max(0.0, now - self._reported - seconds)
        self._reported = now

    def summary(self) -> str:
        """Returns tokens/s of every method, and α (the mean over answers) if draft tokens were judged."""
        parts = []
        for name in self._tokens:
            speed = self._tokens[name] / self._seconds[name] if self._seconds[name] else 0.0
            alpha = f" α {fmean(self._rates[name]):.2f}" if self._rates[name] else ""
            parts.append(f"{name} {speed_text(speed)} tok/s{alpha}")
        return " · ".join(parts)

    def _time_left(self) -> str:
        if not self.num_measured:
            return ""
        seconds = self._measuring / self.num_measured * (self.num_blocks - self.num_done)
        later = list(self._warm_ups.values())[1:] or list(self._warm_ups.values())  # the first is the longest
        seconds += fmean(later) * max(0, self.num_subsets - len(self._warm_ups))
        return f" · {seconds:.0f} s left" if seconds >= 1 else ""


def announce(console: Console, num_blocks: int, num_done: int, folder: Path, noun: str = "examples") -> None:
    """Prints the run's folder, and how many of its blocks are measured already. `noun`: the word for blocks."""
    noun = noun.removesuffix("s") if num_blocks == 1 else noun
    if num_done == num_blocks:
        subject = f"the {noun} is" if num_blocks == 1 else f"all {num_blocks} {noun} are"
        text = f"{subject} measured already in {folder}: another --output folder measures again"
    elif num_done:
        text = f"resuming {folder}: {num_done} of {num_blocks} {noun} are there"
    else:
        text = f"measuring {num_blocks} {noun} into {folder}"
    say(console, text)


@contextmanager
def report_kept_results(console: Console, folder: Path) -> Iterator[None]:
    """Ends an interrupted run, or one without enough memory, with one line: everything measured is kept."""
    try:
        yield
    except KeyboardInterrupt:
        say(console, f"interrupted: everything measured is kept in {folder}; the same command resumes it")
        sys.exit(INTERRUPTED)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"{memory_message(error)}; everything measured is kept in {folder}; use a smaller model, dtype or "
            "generation.max_new_tokens, or free memory and repeat the command to resume"
        ) from error


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
