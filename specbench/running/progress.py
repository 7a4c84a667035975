"""What a run says while it works: a rich progress bar on a terminal, plain lines elsewhere. Always on stderr."""

import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_LINE_SECONDS = 10.0


class RunProgress:
    """Counts blocks; shows where the run is, tokens/s of every method and the acceptance so far, and the time left."""

    def __init__(self, console: Console, num_blocks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.num_blocks = num_blocks
        self.num_done = self.num_measured = 0
        self._clock = clock
        self._started = self._said = clock()
        self._tokens: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)
        self._accepted: dict[str, int] = defaultdict(int)
        self._judged: dict[str, int] = defaultdict(int)
        self._bar: Progress | None = None

    def __enter__(self) -> "RunProgress":
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn(),
                console=self.console, transient=True,
            )  # fmt: skip
            self._bar.start()
            self._bar_task = self._bar.add_task("warming up", total=self.num_blocks)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, where: str, record: dict[str, Any], measured: bool) -> None:
        """One block is recorded; `measured` is False when it came from an earlier run."""
        self.num_done += 1
        self.num_measured += measured
        for name, result in record["methods"].items():
            self._tokens[name] += len(result["token_ids"]) - 1
            self._seconds[name] += result["decode_seconds"]
            self._judged[name] += sum(step[1] for step in result["steps"])
            self._accepted[name] += sum(step[2] for step in result["steps"])
        line = f"{where} · {self.summary()}"
        if self._bar is not None:
            self._bar.update(self._bar_task, description=line, completed=self.num_done)
        elif self._clock() - self._said >= PLAIN_LINE_SECONDS or self.num_done == self.num_blocks:
            self._said = self._clock()
            self.console.print(
                f"{self.num_done}/{self.num_blocks} {line}{self._time_left()}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def summary(self) -> str:
        """tokens/s of every method, and α where tokens were judged."""
        parts = []
        for name in self._tokens:
            speed = self._tokens[name] / self._seconds[name] if self._seconds[name] else 0.0
            alpha = f" α {self._accepted[name] / self._judged[name]:.2f}" if self._judged[name] else ""
            parts.append(f"{name} {speed:.0f} tok/s{alpha}")
        return " · ".join(parts)

    def _time_left(self) -> str:
        if not self.num_measured:
            return ""
        seconds = (self._clock() - self._started) / self.num_measured * (self.num_blocks - self.num_done)
        return f" · {seconds:.0f} s left" if seconds >= 1 else ""
