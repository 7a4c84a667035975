"""The limits of an attack, ten seconds of CPU time and one gigabyte, and its end: exit code 2 and one line."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_SECONDS = 10.0  # of CPU time of this process: other processes may slow the clock on the wall
MAX_BYTES = 10**9
STATM = Path("/proc/self/statm")


class TookTooLong(BaseException):
    """No Exception: what is attacked must not catch it."""


@contextmanager
def within_bounds() -> Iterator[None]:
    """Fails after ten seconds of CPU time. On Linux an allocation of a gigabyte more than now raises MemoryError."""

    def stop(*_: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        with _limited_memory():
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _limited_memory() -> Iterator[None]:
    if not STATM.is_file():
        yield
        return
    import resource

    now = int(STATM.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MAX_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refused(outcome: tuple[int, str, str], told: str) -> None:
    """Assert that a command ended in one line that tells the reason."""
    code, _, err = outcome
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, outcome
    assert told in err and "Traceback" not in err and "out of memory" not in err, err
