"""A process that measures, seen from outside: started when it is needed, asked, ended."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

from specbench.resources import PACKAGE
from specbench.suite.jobs import Event, Finished, Job, Lost, Opening, Ready

PROGRAM = "from specbench.suite.measuring import main; main()"


class MeasuringProcess:
    """Starts at `open`; a job that ends it is `Lost`."""

    name = "the measuring process"

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def open(self) -> Ready | Lost:
        """Start the process, where it does not run, and wait until it is there."""
        self.close()
        paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(  # in a process group of its own: who asks is interrupted, not who measures
            [sys.executable, "-P", "-X", "faulthandler", "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, start_new_session=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        event = self._exchange(self._opening)
        assert isinstance(event, Ready | Lost)
        return event

    def events(self, job: Job) -> Iterator[Event]:
        """Send a job, and tell what happens until it is finished or lost."""
        event = self._exchange(job)
        while True:
            yield event
            if isinstance(event, Finished | Lost):
                return
            event = self._next()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def close(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                with suppress(OSError):
                    if stream is not None:
                        stream.close()
            self._process = None

    def _exchange(self, message: Opening | Job) -> Event:
        assert self._process is not None and self._process.stdin is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
        except OSError:
            return self._lost()
        return self._next()

    def _next(self) -> Event:
        assert self._process is not None and self._process.stdout is not None
        try:
            event: Event = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError, ValueError):
            return self._lost()
        return event

    def _lost(self) -> Lost:
        assert self._process is not None
        code = self._process.wait()
        last = self._last_error()
        return Lost(f"its process ended {how(code)}{f': {last}' if last else ''}")

    def _last_error(self) -> str:
        """The first line of what a crash has written, or the last of a traceback."""
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        return (fatal or lines[-1:] or [""])[0][:200]


def how(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        hint = ", as the system does where memory runs out" if name == "SIGKILL" else ""
        return f"by {name}{hint}"
    return f"by signal {-code}"
