"""Workers: a pool of processes that share jobs, and the messages between them.

An idle worker takes the next job; the job of a lost worker goes to another. The program of such a process is in
`worker_program.py`: this file imports no torch, since a host in a cluster only starts that program and passes messages
on.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Protocol, Self

from specbench.core.environment import PACKAGE, called
from specbench.core.errors import ConfigError
from specbench.models.machine import commit, environment
from specbench.records.records import Record
from specbench.results.conditions import VERSIONS, check_rows
from specbench.running.request import Request

PROGRAM = "from specbench.publish.worker_program import main; main()"


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
        assert self.request.output is not None
        return self.request.output


@dataclass(frozen=True)
class WorkerSettings:
    """The first message to a worker. `threads`: the number of CPU threads; None: all."""

    device: str
    threads: int | None


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
    `num_trials`: the number of trials of the whole run."""

    files: dict[str, bytes] | None = None
    num_trials: int = 0


@dataclass(frozen=True)
class TrialRecorded:
    """A trial is on the worker's disk. `measured`: False if it was there before."""

    record: Record
    measured: bool


@dataclass(frozen=True)
class JobFinished:
    """The run is over. `failure`: the reason why it has no rows; None if it has. `is_last`: whether the process now
    ends itself."""

    failure: str | None
    seconds: float = 0.0
    is_last: bool = False
    files: dict[str, bytes] | None = None


@dataclass(frozen=True)
class WorkerLost:
    """The worker's process is gone. Its job, if it had one, is not finished. `is_last`: whether the job is given up."""

    reason: str
    is_last: bool = False


Event = WorkerReady | LogLine | JobStarted | TrialRecorded | JobFinished | WorkerLost
Send = Callable[[Event], None]


class WorkerProcess(Protocol):
    """Measures one job at a time in a process that may be lost. `open` starts the process, or replaces a lost one."""

    @property
    def name(self) -> str: ...
    def open(self) -> WorkerReady | WorkerLost: ...
    def events(self, job: RunJob) -> Iterator[Event]: ...
    def close(self) -> None: ...


PoolEvent = tuple[str, int | None, Event]  # the worker's name, the number of its job if it has one, the event


class WorkerPool:
    """Processes that share jobs. For each, a thread opens the process, gives it jobs, and opens it again if it ends."""

    def __init__(self, processes: Sequence[WorkerProcess]) -> None:
        self._jobs: queue.SimpleQueue[tuple[int, RunJob] | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        self._processes = processes
        self._is_closed = False
        self.num_workers = len(processes)  # without those that could not be opened

    def __enter__(self) -> Self:
        for process in self._processes:
            threading.Thread(target=self._work, args=(process,), daemon=True).start()
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

    def opened(self) -> Iterator[PoolEvent]:
        """Yields one event for each process: it is ready, or it cannot be opened."""
        for _ in self._processes:
            yield self._next_event()

    def run(self, jobs: Sequence[RunJob], max_losses: int) -> Iterator[PoolEvent]:
        """Does every job. Yields all events, among them one JobFinished for each job. A job whose worker is lost goes
        to another worker, but fails after `max_losses` losses. Raises ConfigError if no worker is left."""
        for waiting in enumerate(jobs):
            self._jobs.put(waiting)
        losses, num_finished = Counter[int](), 0
        while num_finished < len(jobs):
            name, job, event = self._next_event()
            if job is not None and isinstance(event, WorkerLost):
                losses[job] += 1
                event = replace(event, is_last=losses[job] == max_losses)
                if not event.is_last:
                    self._jobs.put((job, jobs[job]))
            yield name, job, event
            if isinstance(event, WorkerLost) and event.is_last:
                times = f" {max_losses} times" if max_losses > 1 else ""
                event = JobFinished(f"its worker was lost{times}: {event.reason}")
                yield name, job, event
            num_finished += isinstance(event, JobFinished)

    def _next_event(self) -> PoolEvent:
        name, job, event = self._events.get()
        if job is None and isinstance(event, WorkerLost):
            self.num_workers -= 1
            if not self.num_workers:
                raise ConfigError(f"no worker is left: {event.reason}; everything measured is kept")
        return name, job, event


class MachineCheck:
    """Refuses workers whose rows would not compare with those of the first worker or of an existing leaderboard."""

    def __init__(self, leaderboard: Path) -> None:
        self._leaderboard = leaderboard
        self._first: WorkerReady | None = None
        self._hosts: list[str] = []

    def accept(self, ready: WorkerReady) -> None:
        """Raises ConfigError, with both values, if a worker differs from this process or from the first worker."""
        here = {**environment("cpu", "", "")["versions"], "commit of specbench": commit(PACKAGE.parent)}
        there = {**ready.versions, "commit of specbench": ready.commit}
        for name in (*VERSIONS, "specbench", "commit of specbench"):
            if there.get(name) != here.get(name):
                raise ConfigError(
                    f"worker on {ready.host}: {name} = {there.get(name)}, but {here.get(name)} here: install the same "
                    "on every machine, and do not change it while a suite runs"
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


def failure_reason(error: Exception) -> str:
    """Returns the reason of a failure in one line."""
    return str(error) if isinstance(error, ConfigError) else " ".join(f"{type(error).__name__}: {error}".split())


class ChildProcess:
    """A process that runs a program of specbench and exchanges messages with this process over its standard streams.

    `python`: the interpreter; None is this one with this package. `folder`: its working folder; None is that of this
    process. The standard error is kept for `loss`.
    """

    def __init__(self, program: str, python: str | None = None, folder: Path | None = None) -> None:
        self._program = program
        self._python = python
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def start(self) -> None:
        self.close()
        paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        own = {"PYTHONPATH": os.pathsep.join(paths)} if self._python is None else {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(  # in its own process group, so that an interrupt reaches only the parent
            [self._python or sys.executable, "-P", "-X", "faulthandler", "-c", self._program], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True, env={**variables, **own},
            cwd=self._folder,
        )  # fmt: skip

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                with suppress(OSError):
                    if stream is not None:
                        stream.close()
            self._process = None

    def loss(self) -> str:
        """Returns how the process ended, with the first line of a crash or the last line of a traceback."""
        assert self._process is not None and self._errors is not None
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        last = (fatal or lines[-1:] or [""])[0][:200]
        return f"its process ended {describe_exit(code)}{f': {last}' if last else ''}"


class MeasuringProcess(ChildProcess):
    """A process that measures on this machine. `open` starts it. If it ends during a job, the worker is lost."""

    name = "the measuring process"

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(PROGRAM)
        self._settings = settings

    def open(self) -> WorkerReady | WorkerLost:
        self.start()
        (event,) = self._exchange(self._settings, WorkerReady)
        assert isinstance(event, WorkerReady | WorkerLost)
        return event

    def events(self, job: RunJob) -> Iterator[Event]:
        """Sends a job. Yields its events until it is finished or the process is lost."""
        return self._exchange(job, JobFinished)

    def _exchange(self, message: WorkerSettings | RunJob, last: type[WorkerReady | JobFinished]) -> Iterator[Event]:
        """Sends a message. Yields the events that follow, until one of the type `last` or a loss."""
        messages, events = self.streams
        event: Event | None = None
        try:
            pickle.dump(message, messages)
            messages.flush()
            while not isinstance(event, last):
                event = pickle.load(events)
                yield event
        except (EOFError, OSError, pickle.UnpicklingError, ValueError):
            yield WorkerLost(self.loss())


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        hint = ", as the system does where memory runs out" if name == "SIGKILL" else ""
        return f"by {name}{hint}"
    return f"by signal {-code}"
