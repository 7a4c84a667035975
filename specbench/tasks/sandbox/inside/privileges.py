"""Protects the tester's memory, user and time from the program."""

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Any

PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 4, 8, 47, 2
CAP_DAC_READ_SEARCH = 2
CAPABILITY_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> int:
    """Returns the result of a system call. Raises OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def hide() -> None:
    """Prevents processes of the same user from reading this one's memory or opening its files."""
    check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))


def end_after(seconds: float) -> None:
    """Ends this process, and with it its namespace, after some time, in case no other process does."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, seconds)


def lowered(user: dict[str, Any] | None) -> dict[str, Any]:
    """Returns options of Popen that give a process another user: {"id": number, "reads_all": whether it may read all
    files, which it must if the interpreter is in a folder of root's}. None: the same user."""
    if user is None:
        return {}
    preparation: Callable[[], None] | None = None
    if user["reads_all"]:
        check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
        preparation = _keep_reading
    return {"user": user["id"], "group": user["id"], "extra_groups": [], "preexec_fn": preparation}


def _keep_reading() -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    one = 1 << CAP_DAC_READ_SEARCH
    check(libc.capset(header, (ctypes.c_uint32 * 6)(one, one, one, 0, 0, 0)))
    check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0))
