"""The cost of a training: wall-clock time, processor time, and energy if the machine reports it."""

import time
from collections.abc import Mapping

import torch

from specbench.models.consumption import ProcessorEnergy, gpu_joules

Cost = dict[str, float | None]


class CostMeter(ProcessorEnergy):
    """Measures the cost since its creation, added to an earlier part of the same training; use it inside `with`.

    wall_seconds; cpu_seconds; gpu_joules (NVML, the whole device) and cpu_joules (RAPL, all packages): None if the
    counters cannot be read. The energy includes other programs on the machine. In a training with several processes,
    cpu_seconds and gpu_joules are those of the main process and its device alone.
    """

    def __init__(self, device: torch.device, earlier: Mapping[str, float | None] | None = None) -> None:
        super().__init__()
        self._device, self._earlier = device, dict(earlier or {})
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
