"""Runs a command in its own process group, and ends the group when standard input or the command ends.

The parent holds the other end of standard input. The system closes it in whatever way the parent ends, so that no
server outlives its run. This file is run by its path and imports nothing from the package.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the process group of a command, by SIGTERM first, then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        with suppress(OSError):
            os.killpg(process.pid, number)
        while group_lives(process.pid) and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.02)


def main(command: list[str]) -> int:
    """Runs a command; returns its exit code."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127

    def wait_for_parent() -> None:
        while os.read(0, 1024):  # unbuffered, since the lock of a buffer could block the end of this program
            pass
        end(process)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    code = process.wait()
    end(process)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
