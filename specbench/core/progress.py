"""The progress of a long command on stderr. What takes long names itself, by `doing` or by a bar, and says how far it
is. A terminal shows this as a changing line or a bar; elsewhere a `Heartbeat` prints it whenever nothing was printed
for SILENCE seconds."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from specbench.core import console as output
from specbench.core.console import say, stderr

SILENCE = 10.0  # seconds after which a line is due
REDRAW = 0.25  # minimum seconds between two pictures of a table above a bar
Say = Callable[[str], None]  # shows or prints a progress line


def say_nothing(line: str) -> None:
    """Ignores a progress line."""


def format_duration(seconds: float) -> str:
    """Returns a time in words: 45 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Activity:
    """What the process does, and since when. `show`: shows the innermost activity on a terminal. `has_news`: it counts
    something, and no line has said its new count yet."""

    def __init__(self, text: str, show: Callable[[], None] | None = None) -> None:
        self.text, self.started, self.show = text, time.monotonic(), show
        self.has_news = False

    def say(self, text: str) -> None:
        """Changes the text."""
        self.text, self.started = text, time.monotonic()
        _show_innermost()

    def line(self) -> str:
        """Returns the text, with its age if that is long."""
        seconds = time.monotonic() - self.started
        return f"{self.text} ({seconds:.0f} s)" if seconds >= SILENCE else self.text


_activities: list[Activity] = []  # the innermost one comes last


def _show_innermost() -> bool:
    """Shows the innermost activity. Returns False if nothing on a terminal shows it."""
    show = next((each.show for each in reversed(_activities) if each.show is not None), None)
    if show is not None:
        show()
    return show is not None


@contextmanager
def doing(text: str, show: Callable[[], None] | None = None) -> Iterator[Say]:
    """Names what the process does until the block ends. `show`: see `Activity`. Yields a function that changes the
    text."""
    activity = Activity(text, show)
    _activities.append(activity)
    try:
        _show_innermost()
        yield activity.say
    finally:
        _activities.remove(activity)


class Heartbeat:
    """Breaks the silence of a console: if nothing was printed for SILENCE seconds, says what the process does."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        output.note_output()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def beat(self) -> float:
        """Says what the process does, if that is due. Returns the seconds until it may be due again."""
        silent = time.monotonic() - output.printed_at()
        activities = list(_activities)
        if silent < SILENCE or not activities:
            return max(SILENCE - silent, SILENCE / 10)
        if self._console.is_terminal and _show_innermost():  # on a bar or a spinner
            output.note_output()
        else:
            activity = next((each for each in activities if each.has_news), activities[-1])
            activity.has_news = False
            say(self._console, activity.line())
        return SILENCE

    def _run(self) -> None:
        while not self._ended.wait(self.beat()):
            pass


class BarBelow(Progress):
    """A progress bar below other renderables."""

    above: Sequence[RenderableType] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from self.above
        yield from super().get_renderables()


class ProgressBar:
    """A bar with a description on a terminal, nothing if `quiet`.

    `total`: None if it is unknown at first. `columns`: the columns after the bar, by default counts and the time left.
    `redirect`: whether other output of the process is kept from breaking the bar's line. `above`: returns renderables
    that are shown above the bar. Only `update` computes them, and the screen is then redrawn only by it, by a new
    activity (`doing`) and by a `Heartbeat`, so that next to nothing is drawn during a measurement.
    """

    def __init__(
        self, console: Console, description: str, total: float | None, *columns: ProgressColumn, completed: int = 0,
        quiet: bool = False, redirect: bool = True, above: Callable[[], Iterable[RenderableType]] | None = None,
    ) -> None:  # fmt: skip
        quiet = quiet or output.is_quiet()
        self.console = console
        self._is_plain = not quiet and not console.is_terminal
        self._above = above
        self._drawn = time.monotonic()
        self._bar = BarBelow(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
            *(columns or (MofNCompleteColumn(), TimeRemainingColumn())), console=console, transient=True,
            redirect_stdout=redirect, redirect_stderr=redirect, disable=quiet or not console.is_terminal,
            auto_refresh=above is None,
        )  # fmt: skip
        self._task = self._bar.add_task(description, total=total, completed=completed)
        self._activity = Activity(description, None if quiet else self._show)

    def __enter__(self) -> Self:
        self._bar.start()
        _activities.append(self._activity)
        return self

    def __exit__(self, *error: object) -> None:
        _activities.remove(self._activity)
        self._bar.stop()

    def update(
        self, description: str, completed: float, plain: str = "", is_due: bool = False, total: float | None = None
    ) -> None:
        """Shows the description. `plain`: the line where there is no terminal, by default the description. `is_due`:
        show it at once. `total`: the new total; None keeps the old one."""
        self._activity.text, self._activity.started = plain or description, time.monotonic()
        self._activity.has_news = not is_due
        self._bar.update(self._task, description=description, completed=completed, total=total)
        if self._above is not None and self._is_due(is_due):
            self._bar.above = list(self._above())
            self._redraw()
        if is_due and self._is_plain:
            say(self.console, plain or description)

    def _show(self) -> None:
        """Shows the innermost activity in place of the description."""
        if _activities and _activities[-1] is not self._activity:
            self._bar.update(self._task, description=_activities[-1].line())
        if self._above is not None and self._is_due():
            self._redraw()

    def _is_due(self, is_due: bool = False) -> bool:
        return is_due or time.monotonic() - self._drawn >= REDRAW

    def _redraw(self) -> None:
        self._bar.refresh()
        self._drawn = time.monotonic()


@contextmanager
def status_line(text: str) -> Iterator[Say]:
    """Shows what a command of unknown length does: a changing line on a terminal. Yields a function that changes it."""
    if output.is_quiet() or not stderr.is_terminal:
        with doing(text) as tell:
            yield tell
    else:
        with stderr.status(text) as status, doing(text, lambda: status.update(_activities[-1].line())) as tell:
            yield tell
