"""The energy that the processor takes, from the counters of its packages (RAPL on Linux)."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread

RAPL = Path("/sys/class/powercap")
SECONDS = 10.0  # between two readings
MAX_WATTS = 1000.0  # of one package: more than any takes

Counter = tuple[int, int]  # microjoules so far, and those at which it begins anew


class ProcessorEnergy:
    """Joules of all processor packages since it was made, whatever runs on them.

    A counter begins anew after its range, at full load within minutes. So inside `with` the counters are read every
    few seconds; energy over a time in which one may have passed its range unseen is unknown, and stays so.
    """

    def __init__(self, folder: Path = RAPL, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._joules, self._last, self._read_at = 0.0, packages(folder), clock()
        self._lock, self._stopped, self._thread = Lock(), Event(), Thread(target=self._keep_reading, daemon=True)

    def __enter__(self) -> "ProcessorEnergy":
        if self._last is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def joules(self) -> float | None:
        """So far; None where the counters cannot be read, or have not been read for too long."""
        with self._lock:
            now, found, last = self._clock(), packages(self._folder), self._last
            self._last = None
            if last is None or found is None or found.keys() != last.keys():
                return None
            most = (now - self._read_at) * MAX_WATTS * 1e6
            if any(most >= limit for _, limit in found.values()):
                return None
            self._joules += sum(taken(last[name], found[name]) for name in found) / 1e6
            self._last, self._read_at = found, now
            return self._joules

    def _keep_reading(self) -> None:
        while not self._stopped.wait(SECONDS) and self.joules() is not None:
            pass


def taken(before: Counter, after: Counter) -> int:
    """Microjoules between two readings of one counter, between which it has begun anew at most once."""
    count, limit = after
    return count - before[0] if count >= before[0] else count - before[0] + limit


def packages(folder: Path = RAPL) -> dict[str, Counter] | None:
    """The counter of every package, by its zone; None where there is none or one may not be read. Other zones are parts
    of a package (core, dram) or hold them all (psys)."""
    try:
        found = {
            zone.name: (int((zone / "energy_uj").read_text()), int((zone / "max_energy_range_uj").read_text()))
            for zone in folder.glob("intel-rapl:*")
            if (zone / "name").read_text().startswith("package-")
        }
    except (OSError, ValueError):
        return None
    return found or None
