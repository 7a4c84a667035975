"""Runs a command with a bounded log, and ends all its processes when standard input or the command ends.

The parent holds the other end of standard input. The system closes it in whatever way the parent ends, so that no
server outlives its run. A parent that ends the command itself writes FAREWELL first; without it the guard also removes
the log and its folder, since nobody else will. This file is run by its path and imports nothing from the package.

On Linux the guard is the subreaper of the command: processes whose parent has ended become its children, also those in
sessions of their own, so none escapes. On other systems only the processes of the command's group end.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL
FAREWELL = b"end"
LOG_OPTION = "--log"  # before the command: the guard's standard output is this file
MAX_LOG_BYTES = 16 * 2**20
CUT = b"\n[... specbench removed the middle of this log ...]\n"
READ_BYTES = 2**16
PR_SET_CHILD_SUBREAPER = 36


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


def end(group: int) -> None:
    """Ends the process group of a command and all descendants of this process, by SIGTERM first, then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        is_first = True
        while time.monotonic() < deadline:
            # SIGKILL again and again, since a process may start another one meanwhile.
            for process in descendants() if is_first or number == signal.SIGKILL else ():
                with suppress(OSError):
                    os.kill(process, number)
            if is_first:
                with suppress(OSError):
                    os.killpg(group, number)
            is_first = False
            with suppress(OSError):  # remove orphans that have ended
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not descendants():
                try:
                    os.killpg(group, 0)
                except OSError:  # no process of the group is left
                    return
            time.sleep(0.02)


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


def main(arguments: list[str]) -> int:
    log = None
    if arguments[0] == LOG_OPTION:
        log, arguments = Path(arguments[1]), arguments[2:]
    is_subreaper = False
    if sys.platform.startswith("linux"):
        import ctypes

        is_subreaper = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    if not is_subreaper:
        print("specbench: this system cannot end processes that leave the server's process group", file=sys.stderr)
    source, output = os.pipe() if log is not None else (None, None)
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        print(f"{arguments[0]}: {error.strerror}", file=sys.stderr)
        return 127
    copying = None
    if source is not None and output is not None:
        os.close(output)
        copying = threading.Thread(target=keep_log, args=(source,), daemon=True)
        copying.start()

    parent_is_gone = threading.Event()

    def wait_for_parent() -> None:
        farewell = b""
        while content := os.read(0, 1024):  # unbuffered: the lock of a buffer could block the end of this program
            farewell += content
        parent_is_gone.set()
        end(process.pid)
        if log is not None and farewell != FAREWELL:
            with suppress(OSError):
                log.unlink()
                log.parent.rmdir()  # the guard of the last server succeeds
        os._exit(0)

    waiting = threading.Thread(target=wait_for_parent, daemon=True)
    waiting.start()
    code, ended = 0, None
    with suppress(ChildProcessError):  # the other thread has reaped it
        while ended != process.pid:
            ended, status = os.waitpid(-1, 0)  # of any child, so that no orphan stays a zombie
            code = os.waitstatus_to_exitcode(status)
    if parent_is_gone.is_set():
        waiting.join()
    end(process.pid)
    if copying is not None:
        copying.join(1.0)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
