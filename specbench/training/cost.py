"""What a training costs: wall-clock time, processor time, and energy where the machine tells it."""

import ctypes
import time
from collections.abc import Mapping

import torch

from specbench.training.processor_energy import ProcessorEnergy

Cost = dict[str, float | None]


class Meter:
    """Counts from its making on top of what an earlier part of the same training has cost; inside `with` without gaps.

    wall_seconds; cpu_seconds; gpu_joules (NVML, the whole device of `device`) and cpu_joules (RAPL, all packages): null
    where the counters cannot be read. Energy is that of the machine, whatever else runs on it. Of a training in several
    processes, cpu_seconds and gpu_joules are those of the main process and of its device alone.
    """

    def __init__(self, device: torch.device, earlier: Mapping[str, float | None] | None = None) -> None:
        self._device, self._earlier = device, dict(earlier or {})
        self._start, self._processor = self._counters(), ProcessorEnergy()

    def __enter__(self) -> "Meter":
        self._processor.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._processor.__exit__(*error)

    def cost(self) -> Cost:
        """What it has cost so far; steps that a kill made vain are not in it."""
        taken = {name: since(self._start[name], now) for name, now in self._counters().items()}
        taken["cpu_joules"] = self._processor.joules()
        before = {name: self._earlier.get(name, 0.0) for name in taken}
        return {name: added(before[name], more) for name, more in taken.items()}

    def _counters(self) -> Cost:
        return {
            "wall_seconds": time.perf_counter(),
            "cpu_seconds": time.process_time(),
            "gpu_joules": gpu_joules(self._device),
        }


def since(start: float | None, now: float | None) -> float | None:
    """What a counter has counted; None where it is not known or has begun anew."""
    return None if start is None or now is None or now < start else now - start


def added(before: float | None, more: float | None) -> float | None:
    """The sum; None where a part of it is."""
    return None if before is None or more is None else before + more


def gpu_joules(device: torch.device) -> float | None:
    """The energy that a GPU has taken since its driver was loaded; None where NVML does not tell."""
    if device.type != "cuda":
        return None
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
        properties = torch.cuda.get_device_properties(device)
        uuid = f"GPU-{properties.uuid}".encode()
        problem = (
            nvml.nvmlInit_v2()
            or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle))
            or nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
        )
    except (OSError, AttributeError, RuntimeError):
        return None
    return None if problem else millijoules.value / 1000
