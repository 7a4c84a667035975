"""What a training costs: wall-clock time, processor time, and energy where the machine tells it."""

import ctypes
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

RAPL = Path("/sys/class/powercap")
Cost = dict[str, float | None]


class Meter:
    """Counts from its making on top of what an earlier part of the same training has cost.

    wall_seconds; cpu_seconds of this process; gpu_joules (NVML, the whole device of `device`) and cpu_joules (RAPL, all
    packages): null where the counters cannot be read. Energy is that of the machine, whatever else runs on it.
    """

    def __init__(self, device: torch.device, earlier: Mapping[str, float | None] | None = None) -> None:
        self._device, self._earlier = device, dict(earlier or {})
        self._start = self._counters()

    def cost(self) -> Cost:
        """What it has cost so far; steps that a kill made vain are not in it."""
        total: Cost = {}
        for name, now in self._counters().items():
            start, before = self._start[name], self._earlier.get(name, 0.0)
            known = now is not None and start is not None and before is not None and now >= start
            total[name] = before + now - start if known else None  # type: ignore[operator]
        return total

    def _counters(self) -> Cost:
        return {
            "wall_seconds": time.perf_counter(),
            "cpu_seconds": time.process_time(),
            "gpu_joules": gpu_joules(self._device),
            "cpu_joules": cpu_joules(),
        }


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


def cpu_joules(folder: Path = RAPL) -> float | None:
    """The energy that all processor packages have counted; None where it may not be read. Counters that wrap make the
    difference negative, which is then unknown."""
    total, found = 0.0, False
    with suppress(OSError, ValueError):
        for zone in sorted(folder.glob("intel-rapl:*")):
            if zone.name.count(":") == 1:  # a package, not a part of one
                total += int((zone / "energy_uj").read_text()) / 1e6
                found = True
        return total if found else None
    return None
