"""A pool of workers and the jobs that they share: an idle worker takes the next job, a lost worker's job returns."""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from specbench.core.errors import ConfigError
from specbench.core.resources import PACKAGE
from specbench.core.threads import called
from specbench.results.conditions import VERSIONS
from specbench.results.environment import check_rows, commit, environment
from specbench.running.records import Record
from specbench.running.request import Request


@dataclass(frozen=True)
class RunJob:
    """One run. `cwd`: the folder that its paths start from, where the worker's machine has it. `fairness`: whether the
    rows get the numbers of `specbench fairness`. `num_sharing`: the workers that share the CPUs of a machine, this one
    among them."""

    request: Request
    cwd: Path | None = None
    fairness: bool = False
    num_sharing: int = 1

    @property
    def folder(self) -> Path:
        """Returns the folder of the records."""
        assert self.request.output is not None
        return self.request.output


@dataclass(frozen=True)
class WorkerSettings:
    """The first message to a worker: its device, whose name may hold the threads. `scratch`: a folder that is removed
    when the sender is gone."""

    device: str
    threads: int | None
    scratch: Path | None = None


@dataclass(frozen=True)
class WorkerReady:
    """A worker has started. The device, the versions and the commit must be equal in all workers."""

    host: str
    pid: int
    device: str
    versions: dict[str, str | None]
    commit: str | None


@dataclass(frozen=True)
class LogLine:
    """A line for the user."""

    line: str


@dataclass(frozen=True)
class JobStarted:
    """The models are loaded. `files`: those of the run's folder, by name, if the folder is the worker's own.
    `num_blocks`: of the whole run."""

    files: dict[str, bytes] | None = None
    num_blocks: int = 0


@dataclass(frozen=True)
class BlockRecorded:
    """A block is on the worker's disk. `measured`: False where it was there before."""

    record: Record
    measured: bool


@dataclass(frozen=True)
class JobFinished:
    """The run is over. `failure`: the reason why it has no rows. `load_seconds`: for models that were not loaded
    before. `is_last`: the process ends itself."""

    failure: str | None
    seconds: float = 0.0
    load_seconds: float = 0.0
    is_last: bool = False
    files: dict[str, bytes] | None = None


@dataclass(frozen=True)
class WorkerLost:
    """The worker's process is gone, with the reason; a job that it had is not finished."""

    reason: str


Event = WorkerReady | LogLine | JobStarted | BlockRecorded | JobFinished | WorkerLost


class WorkerProcess(Protocol):
    """Measures one job at a time in a process that may be lost; `open` starts it, or a new one in its place."""

    @property
    def name(self) -> str: ...
    def open(self) -> WorkerReady | WorkerLost: ...
    def events(self, job: RunJob) -> Iterator[Event]: ...
    def close(self) -> None: ...


class WorkerPool:
    """Processes that share jobs, each followed by a thread that opens it, again where it has ended, and gives it jobs.

    `tell` is called with every event, the worker's name and the number of its job; `accept` may refuse a worker
    by raising ConfigError, which ends the suite.
    """

    def __init__(
        self, processes: Sequence[WorkerProcess], accept: Callable[[WorkerReady], None],
        tell: Callable[[str, int | None, Event], None],
    ) -> None:  # fmt: skip
        self._jobs: queue.SimpleQueue[tuple[int, RunJob] | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[tuple[str, int | None, Event]] = queue.SimpleQueue()
        self._processes, self._accept, self._tell = processes, accept, tell
        self._is_closed = False
        self.num_workers = len(processes)  # those that are not lost for good

    def __enter__(self) -> "WorkerPool":
        for process in self._processes:
            threading.Thread(target=self._work, args=(process,), daemon=True).start()
        try:
            for _ in self._processes:
                self._next_event()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _work(self, process: WorkerProcess) -> None:
        """Does jobs in a process until the pool is closed or the process cannot be opened."""
        while not self._is_closed and isinstance(self._send(process, None), WorkerReady):
            event: Event | None = None
            while event is None or (isinstance(event, JobFinished) and not event.is_last):
                job = self._jobs.get()
                if job is None or self._is_closed:
                    return
                event = self._send(process, job)

    def _send(self, process: WorkerProcess, job: tuple[int, RunJob] | None) -> Event:
        """Sends all events of a job, or that of opening the process, and the loss of the worker where they end in an
        error. Returns the last event."""
        number = None if job is None else job[0]
        event: Event = WorkerLost("it sent nothing")
        try:
            for event in [process.open()] if job is None else process.events(job[1]):
                self._events.put((process.name, number, event))
        except Exception as error:  # of the connection, or of a disk that takes no records
            event = WorkerLost(failure_reason(error))
            self._events.put((process.name, number, event))
        return event

    def run(self, jobs: Sequence[RunJob], max_losses: int, ended: Callable[[int, JobFinished], None]) -> None:
        """Does every job, and calls `ended` once for each. A job whose worker is lost goes to another worker, until
        that has happened `max_losses` times."""
        for waiting in enumerate(jobs):
            self._jobs.put(waiting)
        losses, num_ended = Counter[int](), 0
        while num_ended < len(jobs):
            job, event = self._next_event()
            if job is not None and isinstance(event, WorkerLost):
                losses[job] += 1
                if losses[job] < max_losses:
                    self._jobs.put((job, jobs[job]))
                    continue
                times = f" {max_losses} times" if max_losses > 1 else ""
                event = JobFinished(f"its worker was lost{times}: {event.reason}")
            if job is not None and isinstance(event, JobFinished):
                ended(job, event)
                num_ended += 1

    def _next_event(self) -> tuple[int | None, Event]:
        """Waits for an event. Returns it with the number of its job. Raises ConfigError if the last worker cannot be
        opened."""
        name, job, event = self._events.get()
        if isinstance(event, WorkerReady):
            self._accept(event)
        self._tell(name, job, event)
        if job is None and isinstance(event, WorkerLost):
            self.num_workers -= 1
            if not self.num_workers:
                raise ConfigError(f"no worker is left: {event.reason}; everything measured is kept")
        return job, event

    def _close(self) -> None:
        self._is_closed = True
        for process in self._processes:
            self._jobs.put(None)
            process.close()


class MachineCheck:
    """Refuses a worker whose rows would not compare with those of the first worker, or of an existing leaderboard."""

    def __init__(self, leaderboard: Path) -> None:
        self._leaderboard = leaderboard
        self._first: WorkerReady | None = None
        self._hosts: list[str] = []

    def accept(self, ready: WorkerReady) -> None:
        """Raises ConfigError naming both values where a worker differs."""
        versions = environment("cpu", "", "")["versions"]
        here = {f"version of {name}": versions.get(name) for name in (*VERSIONS, "specbench")}
        there = {f"version of {name}": ready.versions.get(name) for name in (*VERSIONS, "specbench")}
        here["commit of specbench"], there["commit of specbench"] = commit(PACKAGE.parent), ready.commit
        for name, value in here.items():
            if there[name] != value:
                raise ConfigError(
                    f"worker on {ready.host}: {name} = {there[name]}, here it is {value}: install the same on every "
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
        """Returns the most workers that share the CPUs of one machine; 1 where each has its own, or a GPU."""
        if self._first is None or "thread" not in self._first.device:
            return 1
        return max(map(self._hosts.count, self._hosts))

    def check_leaderboard(self) -> None:
        """Raises ConfigError where the rows of the workers do not go into the leaderboard. Call it when all workers
        have started."""
        if self._first is not None and self._leaderboard.exists():
            device = called(self._first.device, self.num_sharing())
            check_rows(self._leaderboard, device, self._first.versions)

    def sharing_warning(self) -> str | None:
        """Returns a line on workers that share the CPUs of one machine; None where there are none."""
        if (number := self.num_sharing()) == 1:
            return None
        host = max(self._hosts, key=self._hosts.count)
        return (
            f"{number} workers share the CPUs and memory of {host} and slow each other down: their speed-ups, each "
            "measured beside AR in its own worker, compare only with others measured in this way, as the device of "
            "their rows says"
        )


def failure_reason(error: Exception) -> str:
    """Returns why a cell failed, in one line."""
    return str(error) if isinstance(error, ConfigError) else " ".join(f"{type(error).__name__}: {error}".split())
