"""The progress of a long command on stderr: a changing line or a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from specbench.core.console import say, stderr

SILENCE = 10.0  # minimum seconds between plain lines
Say = Callable[[str], None]  # shows or prints a line of progress


def say_nothing(line: str) -> None:
    """Ignores the line, where nobody reads it."""


class PlainLines:
    """Prints lines of progress with at least SILENCE seconds between them; none if there is no console."""

    def __init__(self, console: Console | None) -> None:
        self._console, self._printed = console, time.monotonic()

    def say(self, text: str, is_due: bool = False) -> None:
        """Prints the text if SILENCE has passed, or if `is_due`, as the last line always is."""
        if self._console is not None and (is_due or time.monotonic() - self._printed >= SILENCE):
            self._printed = time.monotonic()
            say(self._console, text)


class ProgressBar:
    """A bar with a description on a terminal; plain lines elsewhere; nothing if `quiet`.

    `total`: None if it is unknown at first. `columns`: what follows the bar, by default counts and the time left.
    `redirect`: whether the bar keeps other output of the process from breaking its line.
    """

    def __init__(
        self, console: Console, description: str, total: float | None, *columns: ProgressColumn, completed: int = 0,
        quiet: bool = False, redirect: bool = True,
    ) -> None:  # fmt: skip
        self.console = console
        self._lines = PlainLines(None if quiet or console.is_terminal else console)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
            *(columns or (MofNCompleteColumn(), TimeRemainingColumn())), console=console, transient=True,
            redirect_stdout=redirect, redirect_stderr=redirect, disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(description, total=total, completed=completed)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(
        self, description: str, completed: float, plain: str = "", is_due: bool = False, total: float | None = None
    ) -> None:
        """Shows the description. `plain`: the plain line, by default the description; printed at once if `is_due`.
        `total`: the new total; None leaves it as it is."""
        self._bar.update(self._task, description=description, completed=completed, total=total)
        self._lines.say(plain or description, is_due)


@contextmanager
def status_line(what: str) -> Iterator[Say]:
    """Shows the progress of a command of unknown length: a changing line on a terminal, a line at intervals
    elsewhere."""
    if stderr.is_terminal:
        with stderr.status(what) as status:
            yield status.update
        return
    yield PlainLines(stderr).say
