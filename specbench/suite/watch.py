"""What a suite says while it works: a bar on a terminal, plain lines elsewhere; with the time that is left."""

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from specbench.console import say
from specbench.running.progress import PLAIN_LINE_SECONDS
from specbench.suite.evidence import generation_seconds
from specbench.suite.forecast import Forecast, shown
from specbench.suite.jobs import Begun, Event, Finished, Lost, Ready, Recorded, Said


class Watch:
    """Hears every event of the crew. `losses`: a line for each worker that was lost at work."""

    def __init__(self, console: Console, forecast: Forecast, num_workers: int) -> None:
        self._console, self._forecast, self._num_workers = console, forecast, num_workers
        self.losses: list[str] = []
        self._cells: Sequence[int] = ()  # of the jobs
        self._first_only = False
        self._max_losses = 1
        self._lost: Counter[int] = Counter()  # workers, by cell
        self._generating: dict[int, float] = {}  # seconds, by cell
        self._ended = 0
        self._said = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> "Watch":
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn(),
                console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, cells: Sequence[int], first_only: bool, max_losses: int) -> None:
        """The jobs from here on are of these cells; `first_only`: of the first example of each."""
        self._cells, self._first_only, self._max_losses, self._ended = cells, first_only, max_losses, 0
        self._lost.clear()

    def tell(self, worker: str, job: int | None, event: Event) -> None:
        """Take one event in, and say what there is to be said of it."""
        if job is None:
            if self._num_workers > 1 and isinstance(event, Ready):
                say(self._console, f"{worker} is ready: {event.device}, on {event.host}")
            elif isinstance(event, Lost):
                say(self._console, f"{worker} cannot be started: {event.reason}")
            return
        cell = self._cells[job]
        name = self._forecast.plan[cell].cell.name
        if isinstance(event, Said):
            say(self._console, f"{name}: {event.line}" if self._num_workers > 1 else event.line)
        elif isinstance(event, Begun):
            self._generating[cell] = 0.0
        elif isinstance(event, Recorded) and event.measured:
            self._forecast.add(cell, event.record)
            self._generating[cell] = self._generating.get(cell, 0.0) + generation_seconds(event.record)
            self._progress(name)
        elif isinstance(event, Lost):
            self._lost[cell] += 1
            again = self._lost[cell] < self._max_losses
            then = "it goes back into the queue, with what is recorded of it" if again else "it is given up"
            self.losses.append(f"{name}: {worker} was lost: {event.reason}: {then}")
            say(self._console, self.losses[-1])
        elif isinstance(event, Finished) and event.failure is None:
            self._learn(cell, event)

    def _learn(self, cell: int, event: Finished) -> None:
        """What a cell took beside its answers."""
        planned = self._forecast.plan[cell]
        pair = planned.cell.pair_name
        self._forecast.loading[pair] = max(event.load_seconds, self._forecast.loading.get(pair, 0.0))
        rest = event.seconds - event.load_seconds - self._generating.pop(cell, 0.0)
        self._forecast.other[planned.group] = max(0.0, rest)

    def ended(self, cell: int, event: Finished) -> None:
        """A cell is measured, or it has failed for good."""
        planned, self._ended = self._forecast.plan[cell], self._ended + 1
        planned.is_measured = True
        state = f"measured in {shown(event.seconds)}" if event.failure is None else f"FAILED: {event.failure}"
        say(self._console, f"[{self._ended}/{len(self._cells)}] {planned.cell.name}: {state}{self._left()}")

    def _progress(self, name: str) -> None:
        chosen = [self._forecast.plan[number] for number in self._cells]
        done, total = (sum(getattr(each, key) for each in chosen) for key in ("num_done", "num_blocks"))
        line = "measuring first examples" if self._first_only else f"{name}{self._left()}"
        if self._bar is not None:
            self._bar.update(self._task, description=line, completed=done, total=total)
        elif time.monotonic() - self._said >= PLAIN_LINE_SECONDS and not self._first_only:
            self._said = time.monotonic()
            say(self._console, f"{done}/{total} examples · {line}")

    def _left(self) -> str:
        seconds = self._forecast.total(self._num_workers).seconds
        return f" · about {shown(seconds)} left" if seconds >= 1 else ""
