"""One writer at a time, or any number of readers: a lock file that is held for as long as a block runs."""

import errno
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any


def _module(name: str) -> Any:
    """A module of the standard library that only some systems have; None on the others."""
    try:
        return import_module(name)
    except ImportError:
        return None


fcntl, msvcrt = _module("fcntl"), _module("msvcrt")
PAUSE, READERS = 0.05, 10.0  # seconds: between two tries on Windows; for how long readers there wait for each other


@contextmanager
def locked(path: Path, *, wait: bool, shared: bool = False) -> Iterator[None]:
    """Hold a lock file, which is made with its folder where it is absent; the system frees it when the process ends.
    `shared`: others that share it may hold it as well; on Windows, which has no such locks, one after the other.

    Raises OSError when it cannot be made, BlockingIOError when another holds it and `wait` is False. Warns where the
    file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        is_held = _take(file, path, wait, shared)
        try:
            yield
        finally:
            if is_held and fcntl is None:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def _take(file: IO[str], path: Path, wait: bool, shared: bool) -> bool:
    """Whether the file is locked now; not where the file system has no locks, which is told."""
    try:
        if fcntl is not None:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        else:
            _lock_byte(file, wait, READERS if shared else 0.0)
    except BlockingIOError:
        raise
    except OSError as error:
        problem = f"{path.parent}: no locks there ({error.strerror or error})"
        warnings.warn(f"{problem}: let one process at a time write", stacklevel=1)
        return False
    return True


def _lock_byte(file: IO[str], wait: bool, seconds: float) -> None:
    """Lock the first byte, as Windows locks files; try again for so many seconds, or until it is free."""
    end = time.monotonic() + seconds
    while True:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            return
        except PermissionError as error:  # another holds it
            if not wait and time.monotonic() >= end:
                raise BlockingIOError(errno.EAGAIN, "another process holds it") from error
        time.sleep(PAUSE)
