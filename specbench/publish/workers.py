"""A pool of workers that share jobs: an idle worker takes the next job; the job of a lost worker goes to another."""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from specbench.core.environment import PACKAGE, called
from specbench.core.errors import ConfigError
from specbench.records.records import Record
from specbench.results.conditions import VERSIONS, check_rows, commit, environment
from specbench.running.request import Request


@dataclass(frozen=True)
class RunJob:
    """One run. `cwd`: the folder from which its paths start, if the worker's machine has it. `fairness`: whether the
    rows get the numbers of `specbench fairness`. `num_sharing`: the number of workers that share the CPUs of a machine,
    this one included."""

    request: Request
    cwd: Path | None = None
    fairness: bool = False
    num_sharing: int = 1

    @property
    def folder(self) -> Path:
        """The folder of the records."""
        assert self.request.output is not None
        return self.request.output


@dataclass(frozen=True)
class WorkerSettings:
    """The first message to a worker. `threads`: the number of CPU threads; None: all. `scratch`: a folder that the
    worker removes when the sender is gone."""

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
    """The models are loaded. `files`: the files of the run's folder by name, if the folder is on the worker's machine.
    `num_blocks`: the number of blocks of the whole run."""

    files: dict[str, bytes] | None = None
    num_blocks: int = 0


@dataclass(frozen=True)
class BlockRecorded:
    """A block is on the worker's disk. `measured`: False if it was there before."""

    record: Record
    measured: bool


@dataclass(frozen=True)
class JobFinished:
    """The run is over. `failure`: the reason why it has no rows; None if it has. `load_seconds`: the time to load
    models. `is_last`: whether the process now ends itself."""

    failure: str | None
    seconds: float = 0.0
    load_seconds: float = 0.0
    is_last: bool = False
    files: dict[str, bytes] | None = None


@dataclass(frozen=True)
class WorkerLost:
    """The worker's process is gone. Its job, if it had one, is not finished. `is_last`: whether the job is given up."""

    reason: str
    is_last: bool = False


Event = WorkerReady | LogLine | JobStarted | BlockRecorded | JobFinished | WorkerLost


class WorkerProcess(Protocol):
    """Measures one job at a time in a process that may be lost. `open` starts the process, or replaces a lost one."""

    @property
    def name(self) -> str: ...
    def open(self) -> WorkerReady | WorkerLost: ...
    def events(self, job: RunJob) -> Iterator[Event]: ...
    def close(self) -> None: ...


class WorkerPool:
    """Processes that share jobs. For each, a thread opens the process, gives it jobs, and opens it again if it ends.

    `accept`: may refuse a worker by raising ConfigError, which ends the suite. `report`: receives the worker's name,
    the number of its job, and every event.
    """

    def __init__(
        self, processes: Sequence[WorkerProcess], accept: Callable[[WorkerReady], None],
        report: Callable[[str, int | None, Event], None],
    ) -> None:  # fmt: skip
        self._jobs: queue.SimpleQueue[tuple[int, RunJob] | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[tuple[str, int | None, Event]] = queue.SimpleQueue()
        self._processes, self._accept, self._report = processes, accept, report
        self._is_closed, self._max_losses, self._losses = False, 1, Counter[int]()
        self.num_workers = len(processes)  # without those that could not be opened

    def __enter__(self) -> "WorkerPool":
        for process in self._processes:
            threading.Thread(target=self._work, args=(process,), daemon=True).start()
        try:
            for _ in self._processes:
                self._next_event()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._is_closed = True
        for process in self._processes:
            self._jobs.put(None)
            process.close()

    def _work(self, process: WorkerProcess) -> None:
        """Gives jobs to a process until the pool is closed or the process cannot be opened."""
        while not self._is_closed and isinstance(self._send(process, None), WorkerReady):
            event: Event | None = None
            while event is None or (isinstance(event, JobFinished) and not event.is_last):
                job = self._jobs.get()
                if job is None or self._is_closed:
                    return
                event = self._send(process, job)

    def _send(self, process: WorkerProcess, job: tuple[int, RunJob] | None) -> Event:
        """Puts the events of a job, or of opening the process if `job` is None, into the queue. An error counts as the
        loss of the worker. Returns the last event."""
        number = None if job is None else job[0]
        event: Event = WorkerLost("it sent no event")
        try:
            for event in [process.open()] if job is None else process.events(job[1]):
                self._events.put((process.name, number, event))
        except Exception as error:  # the connection failed, or the disk takes no records
            event = WorkerLost(failure_reason(error))
            self._events.put((process.name, number, event))
        return event

    def run(self, jobs: Sequence[RunJob], max_losses: int, finish: Callable[[int, JobFinished], None]) -> None:
        """Does every job, and calls `finish` once for each. A job whose worker is lost goes to another worker, but
        fails after `max_losses` losses."""
        for waiting in enumerate(jobs):
            self._jobs.put(waiting)
        self._losses, self._max_losses = Counter(), max_losses
        num_finished = 0
        while num_finished < len(jobs):
            job, event = self._next_event()
            if job is not None and isinstance(event, WorkerLost):
                if not event.is_last:
                    self._jobs.put((job, jobs[job]))
                    continue
                times = f" {max_losses} times" if max_losses > 1 else ""
                event = JobFinished(f"its worker was lost{times}: {event.reason}")
            if job is not None and isinstance(event, JobFinished):
                finish(job, event)
                num_finished += 1

    def _next_event(self) -> tuple[int | None, Event]:
        """Waits for an event. Returns the number of its job and the event. Raises ConfigError if no worker is left."""
        name, job, event = self._events.get()
        if isinstance(event, WorkerReady):
            self._accept(event)
        if job is not None and isinstance(event, WorkerLost):
            self._losses[job] += 1
            event = replace(event, is_last=self._losses[job] == self._max_losses)
        self._report(name, job, event)
        if job is None and isinstance(event, WorkerLost):
            self.num_workers -= 1
            if not self.num_workers:
                raise ConfigError(f"no worker is left: {event.reason}; everything measured is kept")
        return job, event


class MachineCheck:
    """Refuses workers whose rows would not compare with those of the first worker or of an existing leaderboard."""

    def __init__(self, leaderboard: Path) -> None:
        self._leaderboard = leaderboard
        self._first: WorkerReady | None = None
        self._hosts: list[str] = []

    def accept(self, ready: WorkerReady) -> None:
        """Raises ConfigError, with both values, if a worker differs from this process or from the first worker."""
        versions = environment("cpu", "", "")["versions"]
        here = {f"version of {name}": versions.get(name) for name in (*VERSIONS, "specbench")}
        there = {f"version of {name}": ready.versions.get(name) for name in (*VERSIONS, "specbench")}
        here["commit of specbench"], there["commit of specbench"] = commit(PACKAGE.parent), ready.commit
        for name, value in here.items():
            if there[name] != value:
                raise ConfigError(
                    f"worker on {ready.host}: {name} = {there[name]}, but {value} here: install the same on every "
                    "machine, and do not change it while a suite runs"
                )
        self._first = self._first or ready
        self._hosts.append(ready.host)
        if ready.device != self._first.device:
            raise ConfigError(
                f"workers have different devices, {self._first.device} on {self._first.host} and {ready.device} on "
                f"{ready.host}: their rows do not compare: use a separate cluster and --runs for each kind of machine"
            )

    def num_sharing(self) -> int:
        """Returns the largest number of workers that share the CPUs of one machine; 1 if they use GPUs."""
        if self._first is None or "thread" not in self._first.device:
            return 1
        return max(map(self._hosts.count, self._hosts))

    def check_leaderboard(self) -> None:
        """Raises ConfigError if the leaderboard cannot take the rows of the workers. Call it when all have started."""
        if self._first is not None and self._leaderboard.exists():
            device = called(self._first.device, self.num_sharing())
            check_rows(self._leaderboard, device, self._first.versions)

    def sharing_warning(self) -> str | None:
        """Returns a warning about workers that share the CPUs of one machine; None if none do."""
        if (number := self.num_sharing()) == 1:
            return None
        host = max(self._hosts, key=self._hosts.count)
        return (
            f"{number} workers share the CPUs and memory of {host} and slow each other down: their speed-ups, measured "
            "with AR in the same worker, compare only with others measured in this way; the device in the rows says so"
        )


def failure_reason(error: Exception) -> str:
    """Returns the reason of a failure in one line."""
    return str(error) if isinstance(error, ConfigError) else " ".join(f"{type(error).__name__}: {error}".split())
