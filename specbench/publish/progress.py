"""The progress of a suite: hears the events of the workers, and tells the user and the forecast of them."""

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from specbench.core.console import say
from specbench.publish.forecast import Forecast, duration, generation_seconds
from specbench.publish.workers import (
    BlockRecorded,
    Event,
    JobFinished,
    JobStarted,
    LogLine,
    WorkerLost,
    WorkerReady,
)
from specbench.running.progress import PLAIN_LINE_SECONDS


class SuiteProgress:
    """Hears every event of the workers. `losses`: a line for each worker that was lost during a job."""

    def __init__(self, console: Console, forecast: Forecast, num_workers: int) -> None:
        self._console, self._forecast, self._num_workers = console, forecast, num_workers
        self.losses: list[str] = []
        self._cells: Sequence[int] = ()  # of the jobs
        self._first_only = False
        self._max_losses = 1
        self._num_lost: Counter[int] = Counter()  # workers, by cell
        self._generating: dict[int, float] = {}  # seconds, by cell
        self._num_ended = 0
        self._last_line = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> "SuiteProgress":
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn(),
                console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._bar.start()
            self._bar_task = self._bar.add_task("starting", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, cells: Sequence[int], first_only: bool, max_losses: int) -> None:
        """Begin jobs of these cells; `first_only`: of the first example of each."""
        self._cells, self._first_only, self._max_losses, self._num_ended = cells, first_only, max_losses, 0
        self._num_lost.clear()

    def tell(self, worker: str, job: int | None, event: Event) -> None:
        """Take one event, and print a line where the user needs to know of it."""
        if job is None:
            self._tell_of_worker(worker, event)
            return
        cell = self._cells[job]
        name = self._forecast.plan[cell].cell.name
        if isinstance(event, LogLine):
            say(self._console, f"{name}: {event.line}" if self._num_workers > 1 else event.line)
        elif isinstance(event, JobStarted):
            self._generating[cell] = 0.0
        elif isinstance(event, BlockRecorded) and event.measured:
            self._forecast.add(cell, event.record)
            self._generating[cell] = self._generating.get(cell, 0.0) + generation_seconds(event.record)
            self._show_progress(name)
        elif isinstance(event, WorkerLost):
            self._num_lost[cell] += 1
            again = self._num_lost[cell] < self._max_losses
            then = "it goes back into the queue, with what is recorded of it" if again else "it is given up"
            self.losses.append(f"{name}: {worker} was lost: {event.reason}: {then}")
            say(self._console, self.losses[-1])
        elif isinstance(event, JobFinished) and event.failure is None:
            self._learn(cell, event)

    def _tell_of_worker(self, worker: str, event: Event) -> None:
        if self._num_workers > 1 and isinstance(event, WorkerReady):
            say(self._console, f"{worker} is ready: {event.device}, on {event.host}")
        elif isinstance(event, WorkerLost):
            say(self._console, f"{worker} cannot be started: {event.reason}")

    def _learn(self, cell: int, event: JobFinished) -> None:
        """Give the forecast the time that a cell took beside its answers."""
        planned = self._forecast.plan[cell]
        pair = planned.cell.pair_name
        self._forecast.loading[pair] = max(event.load_seconds, self._forecast.loading.get(pair, 0.0))
        rest = event.seconds - event.load_seconds - self._generating.pop(cell, 0.0)
        self._forecast.other[planned.group] = max(0.0, rest)

    def ended(self, cell: int, event: JobFinished) -> None:
        """Tell that a cell is measured, or has failed for good."""
        planned, self._num_ended = self._forecast.plan[cell], self._num_ended + 1
        planned.is_measured = True
        state = f"measured in {duration(event.seconds)}" if event.failure is None else f"FAILED: {event.failure}"
        say(self._console, f"[{self._num_ended}/{len(self._cells)}] {planned.cell.name}: {state}{self._left()}")

    def _show_progress(self, name: str) -> None:
        plan = [self._forecast.plan[number] for number in self._cells]
        done, total = sum(each.num_done for each in plan), sum(each.num_blocks for each in plan)
        line = "measuring first examples" if self._first_only else f"{name}{self._left()}"
        if self._bar is not None:
            self._bar.update(self._bar_task, description=line, completed=done, total=total)
        elif time.monotonic() - self._last_line >= PLAIN_LINE_SECONDS and not self._first_only:
            self._last_line = time.monotonic()
            say(self._console, f"{done}/{total} examples · {line}")

    def _left(self) -> str:
        seconds = self._forecast.total(self._num_workers).seconds
        return f" · about {duration(seconds)} left" if seconds >= 1 else ""
