"""The console script, and `python -m specbench`: the command line, which an interrupt ends in one line."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line. The imports of a command take seconds, in which it can be interrupted too."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, interrupt)
    from specbench.cli import main as run

    run()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Python does; but end the process while a module is imported, where libraries turn
    the exception into others, or ignore it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"interrupted\n")
            os._exit(128 + number)  # as a shell says it
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
