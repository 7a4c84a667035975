"""Workers and the jobs that they share: who is idle takes the next; a lost one's job goes back into the queue."""

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from specbench.core.errors import ConfigError
from specbench.core.resources import PACKAGE
from specbench.core.threads import called
from specbench.publish.measurement import reason_of
from specbench.results.comparable import VERSIONS
from specbench.results.environment import commit, environment
from specbench.results.machine import check_rows
from specbench.running.records import Record
from specbench.running.request import Request


@dataclass(frozen=True)
class Job:
    """One run. `cwd`: the folder that its paths are seen from, where it is there. `num_sharing`: the workers that share
    the CPUs of the machine, this one among them."""

    request: Request
    allow_code_execution: bool = False
    cwd: Path | None = None
    num_sharing: int = 1

    @property
    def folder(self) -> Path:
        """Where the records are to be."""
        assert self.request.output is not None
        return self.request.output


@dataclass(frozen=True)
class Opening:
    """The first that a worker is sent: what it measures with, which its machine's name may hold. `scratch`: a folder
    that is removed when whoever asks is gone."""

    device: str
    threads: int | None
    scratch: Path | None = None


@dataclass(frozen=True)
class Ready:
    """A worker is there. What must be equal in all of them: the device, the versions, the code."""

    host: str
    pid: int
    device: str
    versions: dict[str, str | None]
    commit: str | None


@dataclass(frozen=True)
class Said:
    """A line for the user."""

    line: str


@dataclass(frozen=True)
class Begun:
    """The models are loaded, and the blocks of the run are known. `files`: of its folder, by name, where the folder
    is the worker's own."""

    num_blocks: int
    files: dict[str, bytes] | None = None


@dataclass(frozen=True)
class Recorded:
    """A block is on the worker's disk. `measured`: False where it was there before."""

    record: Record
    measured: bool


@dataclass(frozen=True)
class Finished:
    """The run is over. `failure`: why it has no rows. `load_seconds`: for models that were not loaded before.
    `is_last`: the process ends itself."""

    failure: str | None
    seconds: float = 0.0
    load_seconds: float = 0.0
    is_last: bool = False
    files: dict[str, bytes] | None = None


@dataclass(frozen=True)
class Lost:
    """The worker's process is gone, and why; a job that it had is not finished."""

    reason: str


Event = Ready | Said | Begun | Recorded | Finished | Lost


class Worker(Protocol):
    """Measures one job at a time, in a process that may be lost; `open` starts it, or another one in its place."""

    @property
    def name(self) -> str: ...
    def open(self) -> Ready | Lost: ...
    def events(self, job: Job) -> Iterator[Event]: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class Hand:
    """A worker with the thread that waits for it. `at`: the number of its job; `is_over`: nothing more is opened."""

    worker: Worker
    inbox: "queue.SimpleQueue[tuple[Hand, Event]]"
    orders: "queue.SimpleQueue[Job | None]" = field(default_factory=queue.SimpleQueue)
    at: int | None = None
    is_over: bool = False

    def work(self) -> None:
        """Open the worker and do its jobs; open it again where its process has ended. Ends when it cannot be opened."""
        while not self.is_over and isinstance(self._told(lambda: iter([self.worker.open()])), Ready):
            event: Event | None = None
            while event is None or (isinstance(event, Finished) and not event.is_last):
                if (job := self.orders.get()) is None:
                    return
                event = self._told(lambda job=job: self.worker.events(job))  # type: ignore[misc]

    def _told(self, act: Callable[[], Iterator[Event]]) -> Event:
        """The last of some events, all of them passed on."""
        event: Event = Lost("it says nothing")
        try:
            for event in act():
                self.inbox.put((self, event))
        except Exception as error:  # of whatever is between us and the worker; a disk that takes no records
            event = Lost(reason_of(error))
            self.inbox.put((self, event))
        return event


class Crew:
    """All workers. `tell` hears every event, with the worker's name and the number of its job; `accept` may refuse a
    worker by raising ConfigError, which ends the suite."""

    def __init__(
        self, workers: Sequence[Worker], accept: Callable[[Ready], None], tell: Callable[[str, int | None, Event], None]
    ) -> None:
        self._inbox: queue.SimpleQueue[tuple[Hand, Event]] = queue.SimpleQueue()
        self._hands = [Hand(worker, self._inbox) for worker in workers]
        self._accept, self._tell = accept, tell
        self._opening = set(self._hands)
        self._idle: list[Hand] = []

    @property
    def num_workers(self) -> int:
        """Those that are not lost for good."""
        return len(self._hands)

    def __enter__(self) -> "Crew":
        for hand in self._hands:
            threading.Thread(target=hand.work, daemon=True).start()
        try:
            while self._opening:
                self._hear()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def run(self, jobs: Sequence[Job], max_losses: int, ended: Callable[[int, Finished], None]) -> None:
        """Have every job done; `ended` hears of each, once. One whose worker is lost goes to another, until that has
        happened `max_losses` times."""
        waiting, losses = deque(range(len(jobs))), Counter[int]()
        num_ended = 0
        while num_ended < len(jobs):
            while self._idle and waiting:
                hand = self._idle.pop(0)
                hand.at = waiting.popleft()
                hand.orders.put(jobs[hand.at])
            at, event = self._hear()
            if at is not None and isinstance(event, Lost):
                losses[at] += 1
                if losses[at] < max_losses:
                    waiting.append(at)
                    continue
                times = f" {max_losses} times" if max_losses > 1 else ""
                event = Finished(f"its worker was lost{times}: {event.reason}")
            if at is not None and isinstance(event, Finished):
                ended(at, event)
                num_ended += 1

    def _hear(self) -> tuple[int | None, Event]:
        """Wait for the next event; the number of the job that it is of."""
        hand, event = self._inbox.get()
        if isinstance(event, Ready):
            self._accept(event)
        self._tell(hand.worker.name, hand.at, event)
        at = hand.at
        if isinstance(event, Ready):
            self._opening.discard(hand)
            self._idle.append(hand)
        elif isinstance(event, Finished):
            hand.at = None
            (self._opening.add if event.is_last else self._idle.append)(hand)
        elif isinstance(event, Lost) and at is None:  # it could not be opened
            self._opening.discard(hand)
            self._hands.remove(hand)
            if not self._hands and not self._opening:
                raise ConfigError(f"no worker is left: {event.reason}; everything measured is kept")
        elif isinstance(event, Lost):
            hand.at = None
            self._opening.add(hand)
        return at, event

    def _close(self) -> None:
        for hand in self._hands:
            hand.is_over = True
            hand.orders.put(None)
            hand.worker.close()


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
