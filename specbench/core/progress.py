"""The progress of a long command on stderr: a changing line or a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from specbench.core.console import say, stderr

SILENCE = 10.0  # minimum seconds between plain lines
REDRAW = 0.25  # minimum seconds between two pictures of a table above a bar
Say = Callable[[str], None]  # shows or prints a progress line


def say_nothing(line: str) -> None:
    """Ignores a progress line."""


class SpacedLines:
    """Prints progress lines with at least SILENCE seconds between them. Without a console it prints nothing."""

    def __init__(self, console: Console | None) -> None:
        self._console, self._printed = console, time.monotonic()

    def say(self, text: str, is_due: bool = False) -> None:
        """Prints the text if SILENCE seconds have passed or `is_due` is true."""
        if self._console is not None and (is_due or time.monotonic() - self._printed >= SILENCE):
            self._printed = time.monotonic()
            say(self._console, text)


class BarBelow(Progress):
    """A progress bar below the renderables that `above` returns."""

    above: Callable[[], Iterable[RenderableType]] | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from self.above() if self.above is not None else ()
        yield from super().get_renderables()


class ProgressBar:
    """A bar with a description on a terminal, plain lines elsewhere, nothing if `quiet`.

    `total`: None if it is unknown at first. `columns`: the columns after the bar, by default counts and the time left.
    `redirect`: whether other output of the process is kept from breaking the bar's line. `above`: returns renderables
    that are shown above the bar. The screen is then redrawn only by `update`, so that no thread draws during a
    measurement.
    """

    def __init__(
        self, console: Console, description: str, total: float | None, *columns: ProgressColumn, completed: int = 0,
        quiet: bool = False, redirect: bool = True, above: Callable[[], Iterable[RenderableType]] | None = None,
    ) -> None:  # fmt: skip
        self.console = console
        self._lines = SpacedLines(None if quiet or console.is_terminal else console)
        self._draws_itself, self._drawn = above is None, time.monotonic()
        self._bar = BarBelow(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
            *(columns or (MofNCompleteColumn(), TimeRemainingColumn())), console=console, transient=True,
            redirect_stdout=redirect, redirect_stderr=redirect, disable=quiet or not console.is_terminal,
            auto_refresh=self._draws_itself,
        )  # fmt: skip
        self._bar.above = above
        self._task = self._bar.add_task(description, total=total, completed=completed)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(
        self, description: str, completed: float, plain: str = "", is_due: bool = False, total: float | None = None
    ) -> None:
        """Shows the description. `plain`: the plain line, by default the description. `is_due`: show it at once.
        `total`: the new total; None keeps the old one."""
        redraw = not self._draws_itself and (is_due or time.monotonic() - self._drawn >= REDRAW)
        self._bar.update(self._task, description=description, completed=completed, total=total, refresh=redraw)
        if redraw:
            self._drawn = time.monotonic()
        self._lines.say(plain or description, is_due)


@contextmanager
def status_line(text: str) -> Iterator[Say]:
    """Shows the progress of a command of unknown length: a changing line on a terminal, spaced lines elsewhere."""
    if stderr.is_terminal:
        with stderr.status(text) as status:
            yield status.update
        return
    yield SpacedLines(stderr).say
