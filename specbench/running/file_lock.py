"""One writer at a time, or any number of readers: a lock file that is held for as long as a block runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: no lock, one writer at a time
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path, *, wait: bool, shared: bool = False) -> Iterator[None]:
    """Hold a lock file, which is made with its folder where it is absent; the system frees it when the process ends.
    `shared`: others that share it may hold it as well.

    Raises OSError when it cannot be made, BlockingIOError when another holds it and `wait` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise
            except OSError:
                pass  # a file system without locks
        yield
