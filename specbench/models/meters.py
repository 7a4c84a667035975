"""Clocks, times of forward passes, energy by the machine's counters (RAPL for processors, NVML for GPUs), peak
memory, and the cost of training. Unknown values are None."""

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self, TypeVar

import torch

Result = TypeVar("Result")
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
        if self._file is None:
            return time.perf_counter()
        while True:
            before = waited_seconds(self._file)
            now = time.perf_counter()
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

    @property
    def lengths(self) -> list[int]:
        """The query length of each pass."""
        return [length for length, *_ in self._passes]

    def add(self, query_length: int, start: Any, end: Any) -> None:
        self._passes.append((query_length, start, end, 1))

    def timed(self, query_length: int, run: Callable[..., Result], *given: Any, **named: Any) -> Result:
        """Runs and adds one pass over `query_length` tokens."""
        start = self.clock.mark()
        result = run(*given, **named)
        self.add(query_length, start, self.clock.mark())
        return result

    def add_together(self, query_lengths: Sequence[int], start: Any, end: Any) -> None:
        """Adds passes without marks in between. Each gets an equal share of the seconds, which include the draws."""
        self._passes += [(length, start, end, len(query_lengths)) for length in query_lengths]

    def join(self, first: int) -> None:
        """Joins the passes from the one with index `first` on, each the part of one, to one pass."""
        parts = self._passes[first:]
        self._passes[first:] = [(sum(length for length, *_ in parts), parts[0][1], parts[-1][2], 1)]

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


RAPL = Path("/sys/class/powercap")
PROCESS = Path("/proc/self")
SECONDS = 10.0  # between two readings
NVML_INSUFFICIENT_SIZE = 7  # an NVML error code
MAX_WATTS = 1000.0  # upper bound of one package's power

EnergyCounter = tuple[int, int]  # microjoules so far, and the value at which the counter wraps around


class ProcessorEnergy:
    """The energy of all processor packages since the object was created, including other programs.

    A counter wraps around at its range, within minutes at full load. Inside `with`, a thread therefore reads the
    counters every few seconds. If a counter may have wrapped around unnoticed, the energy is unknown from then on.
    """

    def __init__(self, folder: Path = RAPL, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._joules = 0.0
        self._last = package_counters(folder)
        self._read_at = clock()
        self._lock = Lock()
        self._stopped = Event()
        self._thread = Thread(target=self._keep_reading, daemon=True)

    def __enter__(self) -> Self:
        if self._last is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def joules(self) -> float | None:
        """Returns the energy so far; None if the counters cannot be read, or were not read for too long."""
        with self._lock:
            now = self._clock()
            counters = package_counters(self._folder)
            last = self._last
            self._last = None
            if last is None or counters is None or counters.keys() != last.keys():
                return None
            most = (now - self._read_at) * MAX_WATTS * 1e6
            if any(most >= limit for _, limit in counters.values()):
                return None
            # A counter that wrapped around did so once.
            self._joules += sum((count - last[name][0]) % limit for name, (count, limit) in counters.items()) / 1e6
            self._last, self._read_at = counters, now
            return self._joules

    def _keep_reading(self) -> None:
        while not self._stopped.wait(SECONDS) and self.joules() is not None:
            pass


def package_counters(folder: Path = RAPL) -> dict[str, EnergyCounter] | None:
    """Returns the counters of all processor packages by zone; None if there are none or one cannot be read. Other zones
    are parts of a package (core, dram) or contain all packages (psys)."""
    try:
        counters = {
            zone.name: (int((zone / "energy_uj").read_text()), int((zone / "max_energy_range_uj").read_text()))
            for zone in folder.glob("intel-rapl:*")
            if (zone / "name").read_text().startswith("package-")
        }
    except (OSError, ValueError):
        return None
    return counters or None


def why_no_cpu_joules(folder: Path = RAPL) -> str | None:
    """Returns why the energy of the processor cannot be read; None if it can."""
    if package_counters(folder) is not None:
        return None
    zones = sorted(folder.glob("intel-rapl:*")) if folder.is_dir() else []
    for zone in zones:
        try:
            (zone / "energy_uj").read_text()
        except PermissionError:
            return f"{zone / 'energy_uj'}: may not be read: let root run `chmod -R a+r {folder}/intel-rapl*`"
        except OSError as error:
            return f"{zone / 'energy_uj'}: {error.strerror or error}"
    return f"{folder} has no counter of a processor package (RAPL), as in many virtual machines and outside Linux"


def why_no_gpu_joules(device: torch.device) -> str | None:
    """Returns why the energy of a CUDA device cannot be read; None if it can."""
    return None if gpu_joules(device) is not None else f"{device}: NVML does not report its energy"


def load_nvml() -> tuple[Any, Any]:
    """Returns NVML and an empty handle. Raises OSError if the library is missing or does not work."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if problem := nvml.nvmlInit_v2():
        raise OSError(f"NVML: error {problem}")
    return nvml, ctypes.c_void_p()


def gpu_joules(device: torch.device) -> float | None:
    """Returns the energy of a GPU since its driver was loaded; None if NVML does not report it."""
    if device.type != "cuda":
        return None
    try:
        nvml, handle = load_nvml()
        millijoules = ctypes.c_ulonglong()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        problem = nvml.nvmlDeviceGetHandleByUUID(
            uuid, ctypes.byref(handle)
        ) or nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
    except (OSError, AttributeError, RuntimeError):
        return None
    return None if problem else millijoules.value / 1000


def num_processes_on_gpu(index: int) -> int:
    """Returns the number of processes that compute on a GPU, by NVML's index; 0 if NVML does not report it."""
    try:
        nvml, handle = load_nvml()
        number = ctypes.c_uint(0)  # no room for the list, so that NVML returns only its length
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            return 0
        problem = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(number), None)
    except (OSError, AttributeError):
        return 0
    return number.value if problem in (0, NVML_INSUFFICIENT_SIZE) else 0


def cpu_waits() -> dict[str, int] | None:
    """Returns by thread of this process for how many nanoseconds it was ready to run and waited for a CPU; None where
    the system does not count them."""
    with suppress(OSError, IndexError, ValueError):  # a thread may end meanwhile
        tasks = list((PROCESS / "task").iterdir())
        return {task.name: int((task / "schedstat").read_text().split()[1]) for task in tasks}
    return None


class Consumption:
    """The energy, the peak memory and the waits for a CPU of one generation, from the creation of the object to
    `fields`.

    The energy of other programs on the machine is included. `placement`: the devices of the target, such as "cpu" or
    "cuda:0+cuda:1"; None for a server, whose consumption is unknown.
    """

    def __init__(self, placement: str | None) -> None:
        self._is_here = placement is not None
        placement = placement or ""
        self._gpus = [torch.device(name) for name in placement.split("+") if name.startswith("cuda")]
        for device in self._gpus:
            torch.cuda.reset_peak_memory_stats(device)
        self._resets_peak = reset_peak_resident_bytes()
        self._joules = list(map(gpu_joules, self._gpus))
        self._processors = ProcessorEnergy()
        self._waits = None if HOST.leaves_out_waits else cpu_waits()  # else no time has them

    def fields(self) -> dict[str, float | int]:
        """Returns those of cpu_wait_seconds, cpu_joules, gpu_joules, peak_host_bytes and peak_device_bytes that are
        known. The devices must have finished their work."""
        if not self._is_here:
            return {}
        waits, before = cpu_waits(), self._waits
        waited = None
        if waits is not None and before is not None:
            waited = round(sum(waits[task] - before.get(task, 0) for task in waits) / 1e9, 6)
        peak_bytes = None
        if self._resets_peak:
            with suppress(OSError, ValueError, StopIteration):
                lines = (PROCESS / "status").read_text().splitlines()
                peak_bytes = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        ends = list(map(gpu_joules, self._gpus))
        used = [b - a for a, b in zip(self._joules, ends, strict=True) if a is not None and b is not None]
        values = {
            "cpu_wait_seconds": waited,
            "cpu_joules": self._processors.joules(),
            "gpu_joules": sum(used) if self._gpus and len(used) == len(self._gpus) else None,
            "peak_host_bytes": peak_bytes,
            "peak_device_bytes": sum(map(torch.cuda.max_memory_allocated, self._gpus)) if self._gpus else None,
        }
        return {name: value for name, value in values.items() if value is not None}


def reset_peak_resident_bytes() -> bool:
    """Resets the peak of this process's resident memory to the current value. Returns whether the system supports that,
    as Linux does."""
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5")
        return True
    return False


Cost = dict[str, float | None]


class CostMeter(ProcessorEnergy):
    """Measures the cost of a training since the object was created, plus that of an earlier part; use it inside `with`.

    The cost is wall_seconds, cpu_seconds, gpu_joules (NVML, the whole device) and cpu_joules (RAPL, all packages);
    energies are None if the counters cannot be read, and include other programs. In a training with several processes,
    cpu_seconds and gpu_joules cover only the main process and its device.
    """

    def __init__(self, device: torch.device, earlier: Mapping[str, float | None] | None = None) -> None:
        super().__init__()
        self._device = device
        self._earlier = dict(earlier or {})
        self._start = self._counters()

    def cost(self) -> Cost:
        """Returns the cost so far, without steps that were lost when a process was killed."""
        cost: Cost = {}
        for name, now in [*self._counters().items(), ("cpu_joules", self.joules())]:
            start, before = self._start.get(name, 0.0), self._earlier.get(name, 0.0)
            if start is None or now is None or before is None or now < start:  # unknown, or the counter was reset
                cost[name] = None
            else:
                cost[name] = before + (now - start)
        return cost

    def _counters(self) -> Cost:
        return {
            "wall_seconds": time.perf_counter(),
            "cpu_seconds": time.process_time(),
            "gpu_joules": gpu_joules(self._device),
        }
