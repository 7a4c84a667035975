"""Runs a command with a bounded log, and ends all its processes when standard input or the command ends.

The parent holds the other end of standard input. The system closes it in whatever way the parent ends, so that no
server outlives its run. The log is the guard's standard output. This file is run by its path and imports nothing from
the package.

On Linux the guard is the subreaper of the command: processes whose parent has ended become its children, also those in
sessions of their own, so none escapes. On other systems only the processes of the command's group end.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL, and after it
PAUSE_SECONDS = 0.1  # between two checks whether the command has ended
MAX_LOG_BYTES = 16 * 2**20
CUT = b"\n[... specbench removed the middle of this log ...]\n"
READ_BYTES = 2**16
PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    # 1. Orphans of the command become children of this process.
    is_subreaper = False
    if sys.platform.startswith("linux"):
        import ctypes

        is_subreaper = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    if not is_subreaper:
        print("specbench: this system cannot end processes that leave the server's process group", file=sys.stderr)

    # 2. The command, whose output another thread copies to the log.
    source, output = os.pipe()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    os.close(output)
    copying = threading.Thread(target=keep_log, args=(source,), daemon=True)
    copying.start()

    # 3. Until it has ended, or the parent has.
    code = None
    while code is None and not select.select([0], [], [], PAUSE_SECONDS)[0]:
        for child, status in ended_children():
            if child == process.pid:
                code = os.waitstatus_to_exitcode(status)
    end(process.pid)
    copying.join(1.0)
    return code or 0


def keep_log(source: int) -> None:
    """Copies a pipe to standard output, a file. The middle of a log of more than MAX_LOG_BYTES is removed."""
    quarter = MAX_LOG_BYTES // 4
    while content := os.read(source, READ_BYTES):
        with suppress(OSError):  # the disk is full: the server must go on all the same
            os.write(1, content)
            size = os.fstat(1).st_size
            if size > MAX_LOG_BYTES:
                tail = os.pread(1, quarter, size - quarter)
                os.ftruncate(1, quarter)
                os.write(1, CUT + tail)


def ended_children() -> list[tuple[int, int]]:
    """Returns (process, status) of each child that has ended, so that no orphan stays a zombie."""
    found = []
    with suppress(ChildProcessError):  # no child is left
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(child)
    return found


def end(group: int) -> None:
    """Ends the process group of a command and all descendants of this process, by SIGTERM first, then by SIGKILL."""
    start = time.monotonic()
    is_asked = False
    while (seconds := time.monotonic() - start) < 2 * GRACE_SECONDS:
        number = signal.SIGTERM if seconds < GRACE_SECONDS else signal.SIGKILL
        if not is_asked or number == signal.SIGKILL:  # again and again, since a process may start another meanwhile
            for process in descendants():
                with suppress(OSError):
                    os.kill(process, number)
            with suppress(OSError):
                os.killpg(group, number)
        is_asked = True
        ended_children()
        if not descendants():
            try:
                os.killpg(group, 0)
            except OSError:  # no process of the group is left
                return
        time.sleep(0.02)


def descendants() -> list[int]:
    """Returns the processes below this one that run; none on systems without /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            with suppress(OSError):
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry))
    found = children.get(os.getpid(), [])
    for process in found:  # grows during the iteration
        found += children.get(process, [])
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
