"""The console script and `python -m specbench`. An interrupt, or a request to end, ends the command with one line."""

import os
import signal
import sys
from types import FrameType

from specbench.core.errors import INTERRUPTED, TERMINATED

received: list[int] = []  # the signals that have interrupted the command


def main() -> None:
    """Run the command line. It can be interrupted even during imports, which take seconds. SIGTERM, by which batch
    systems and containers end a process, does what Ctrl-C does: what is measured is kept, and one line says so."""
    open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a shell ignores interrupts
        signal.signal(signal.SIGINT, interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)
        if hasattr(os, "register_at_fork"):  # a child has nothing to keep
            os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    from specbench.cli import main as run

    try:
        run()
    except SystemExit as ended:
        if ended.code == INTERRUPTED and signal.SIGTERM in received:
            sys.exit(TERMINATED)
        raise


def open_closed_streams() -> None:
    """Open the null device in the place of standard streams that a shell has closed (`<&-`, `2>&-`): libraries expect
    them, and the next file that is opened would get the output of a library. Exit if there is no standard output."""
    had_output = sys.stdout is not None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the system takes the lowest number that is free, which is this one
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))
    if not had_output:
        print("error: standard output is closed: leave out >&-, or write >/dev/null", file=sys.stderr)
        sys.exit(2)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Python does. But while a module is imported, end the process, since libraries replace
    or ignore exceptions during their import."""
    received.append(number)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"interrupted\n")
            os._exit(128 + number)  # as shells do
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
