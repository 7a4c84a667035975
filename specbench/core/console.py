"""The outputs of a command: results on stdout, everything else on stderr."""

import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from specbench.core.errors import ConfigError

CLOSED_PIPE = 141  # the exit code after the reader closes the pipe
# Control characters (C0 except tab and line feed, DEL, C1), line separators, and marks of text direction.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class PlainConsole(Console):
    """A console that prints texts literally, because users' names may contain brackets and colons."""

    def __init__(self, stderr: bool = False) -> None:
        # A pipe or a file has no width. 100 columns hold every table.
        width = None if stderr or (sys.stdout is not None and sys.stdout.isatty()) else 100
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)

    def render_str(self, text: str, **how: Any) -> Text:
        """Escapes control characters before a table measures the text."""
        return super().render_str(visible(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escapes control characters in all output, so that no file content can control the terminal."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*objects, **how)
        note_output()

    def on_broken_pipe(self) -> None:
        discard_output()
        sys.exit(CLOSED_PIPE)


def visible(text: str) -> str:
    """Returns the text with each control character replaced by its JSON escape, such as \\u001b."""
    return CONTROLS.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


UNSEEN = {"Cc", "Cf", "Zl", "Zp"}  # categories: controls, marks of direction, zero-width signs, separators of lines


def revealed(text: str) -> str:
    """Returns a text with the escape of each sign that nobody sees, such as \\u200b, but for tabs and line feeds: names
    of strangers could look like others by them."""
    if text.isprintable():
        return text
    signs = ((sign, sign not in "\t\n" and unicodedata.category(sign) in UNSEEN) for sign in text)
    return "".join(f"\\u{ord(sign):04x}" if is_unseen else sign for sign, is_unseen in signs)


_printed_at = [time.monotonic()]


def printed_at() -> float:
    """Returns the time (of `time.monotonic`) at which this process last printed something for the user."""
    return _printed_at[0]


def note_output() -> None:
    """Remembers that the user sees something new now."""
    _printed_at[0] = time.monotonic()


stdout, stderr = PlainConsole(), PlainConsole(stderr=True)

_quiet, _verbose = [False], [False]


def be_quiet(wanted: bool = True) -> None:
    """Leaves out notes and progress from now on. Results, warnings and errors remain."""
    _quiet[0] = wanted


def is_quiet() -> bool:
    return _quiet[0]


def be_verbose(wanted: bool = True) -> None:
    """Tells more from now on: versions, engines, and every answer that is measured."""
    _verbose[0] = wanted


def is_verbose() -> bool:
    return _verbose[0] and not is_quiet()


def counted(num: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 row" or "3 rows"."""
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def speed_text(tokens_per_second: float) -> str:
    """Returns tokens/s as tables and progress show it: with one decimal below 1000, else without."""
    if abs(tokens_per_second) >= 1e15:  # no machine has it, but a stranger's file may
        return f"{tokens_per_second:.3g}"
    return f"{tokens_per_second:z.{1 if tokens_per_second < 1000 else 0}f}"


def say(console: Console, text: str) -> None:
    """Prints a note, a line of progress or a warning on a console. `be_quiet` leaves out all but warnings."""
    if is_quiet() and not text.startswith("warning"):
        return
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
    note_output()


def fail(error: ConfigError) -> int:
    """Prints an error in one line and returns the exit code."""
    stderr.print(f"error: {error}", soft_wrap=True)
    return 2


def discard_output() -> None:
    """Discards the output that a closed stream did not take, since Python would report it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_warning(message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
    """Prints specbench's own warnings in one line and ignores those of libraries."""
    if category is UserWarning and "specbench" in filename:
        stderr.print(f"warning: {message}", soft_wrap=True)
