"""Whether workers go together: one kind of device, and the code and versions of who asks."""

from pathlib import Path

from specbench.errors import ConfigError
from specbench.leaderboards.comparable import VERSIONS
from specbench.leaderboards.machine import check_rows
from specbench.resources import PACKAGE
from specbench.results.environment import commit, environment
from specbench.suite.jobs import Ready
from specbench.threads import called


class Machines:
    """Refuses a worker whose rows would not compare with those of the first, or of the leaderboard that is there."""

    def __init__(self, leaderboard: Path) -> None:
        self._leaderboard = leaderboard
        self._first: Ready | None = None
        self._hosts: list[str] = []

    def accept(self, ready: Ready) -> None:
        """Raise ConfigError naming both values, for what differs."""
        versions = environment("cpu", "", "")["versions"]
        here = {f"version of {name}": versions.get(name) for name in (*VERSIONS, "specbench")}
        there = {f"version of {name}": ready.versions.get(name) for name in (*VERSIONS, "specbench")}
        here["commit of specbench"], there["commit of specbench"] = commit(PACKAGE.parent), ready.commit
        for what, value in here.items():
            if there[what] != value:
                raise ConfigError(
                    f"worker on {ready.host}: {what} = {there[what]}, here it is {value}: install the same on every "
                    "machine, and do not change it while a suite runs"
                )
        self._first = self._first or ready
        self._hosts.append(ready.host)
        if ready.device != self._first.device:
            raise ConfigError(
                f"workers have different devices, {self._first.device} on {self._first.host} and {ready.device} on "
                f"{ready.host}: their rows do not compare: give each kind of machine a cluster and --runs of its own"
            )

    def num_sharing(self) -> int:
        """The most workers that share the CPUs of one machine; 1 where each has its own, or a GPU."""
        if self._first is None or "thread" not in self._first.device:
            return 1
        return max(map(self._hosts.count, self._hosts))

    def check_leaderboard(self) -> None:
        """Asked when all workers are there. Raises ConfigError where their rows do not go into the file."""
        if self._first is not None and self._leaderboard.exists():
            device = called(self._first.device, self.num_sharing())
            check_rows(self._leaderboard, device, self._first.versions)

    def crowded(self) -> str | None:
        """A line on workers that share the CPUs of one machine; None where there are none."""
        if (number := self.num_sharing()) == 1:
            return None
        host = max(self._hosts, key=self._hosts.count)
        return (
            f"{number} workers share the CPUs and memory of {host} and slow each other down: their speed-ups, each "
            "beside AR in its own worker, compare only with others that were measured so, as their rows' device says"
        )
