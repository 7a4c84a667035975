"""Workers and the jobs that they share: who is idle takes the next; a lost one's job goes back into the queue."""

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from specbench.errors import ConfigError
from specbench.grids.outcomes import reason_of
from specbench.suite.jobs import Event, Finished, Job, Lost, Ready


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
