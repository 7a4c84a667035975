"""The process that measures: takes jobs from its standard input, and tells what happens on its standard output.

Each worker has one, so that a cell that ends its process (a crash, the system out of memory) ends no other; it runs
nothing beside the measuring but a thread that waits, and ends itself when nobody asks any more.
"""

import io
import os
import pickle
import queue
import shutil
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from specbench import console
from specbench.errors import ConfigError
from specbench.suite.jobs import Begun, Event, Finished, Job, Opening, Ready, Recorded, Said

Send = Callable[[Event], None]


def main() -> None:
    """Serve jobs until there are no more. What libraries print goes to the standard error."""
    told, asked = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def send(event: Event) -> None:
        pickle.dump(event, told)
        told.flush()

    console.stderr.file = Lines(send)  # type: ignore[assignment]
    warnings.showwarning = console.show_warning
    opening, jobs = pickle.load(asked), queue.SimpleQueue[Job]()
    threading.Thread(target=take, args=(asked, jobs, opening.scratch), daemon=True).start()
    send(ready(opening))
    serve(jobs, send)


def take(asked: IO[bytes], jobs: "queue.SimpleQueue[Job]", scratch: Path | None) -> None:
    """Jobs as they come; when whoever sends them is gone, so is this process, at once: nothing measured is lost, since
    who has sent a scratch folder has what was recorded there."""
    try:
        while True:
            jobs.put(pickle.load(asked))
    except (EOFError, OSError, pickle.UnpicklingError):
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)


def serve(jobs: "queue.SimpleQueue[Job]", send: Send) -> None:
    """One job after the other, as long as the process is sound."""
    from specbench.suite.kept import KeptModels

    kept = KeptModels()
    is_sound = True
    while is_sound:
        job = jobs.get()
        started = time.monotonic()
        failure, is_sound = attempt(job, kept, send)
        send(Finished(failure, time.monotonic() - started, kept.load_seconds, is_last=not is_sound))
    sys.exit(0)


def attempt(job: Job, kept: Any, send: Send) -> tuple[str | None, bool]:
    """Run a job: why it failed, if it did, and whether the process can go on: not after an error that is no user's
    mistake, nor without memory, which may leave the accelerator as nobody knows."""
    from specbench.execute import execute
    from specbench.grids.outcomes import reason_of
    from specbench.models.memory import is_out_of_memory
    from specbench.sandbox import permission
    from specbench.threads import share_machine

    try:
        if job.cwd is not None and job.cwd.is_dir():
            os.chdir(job.cwd)
        permission.allow(job.allow_code_execution)
        share_machine(job.num_sharing)
        execute(job.request, console.stderr, kept, lambda _, num_blocks: Telling(num_blocks, send))
    except ConfigError as error:
        return str(error), error.__cause__ is None or not is_out_of_memory(error.__cause__)
    except Exception as error:
        return reason_of(error), False
    return None, True


class Telling:
    """Sends every block that is recorded."""

    def __init__(self, num_blocks: int, send: Send) -> None:
        self._num_blocks = num_blocks
        self._send = send

    def __enter__(self) -> "Telling":
        self._send(Begun(self._num_blocks))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def report(self, where: str, record: dict[str, Any], measured: bool) -> None:
        """One block is recorded."""
        self._send(Recorded(record, measured))


class Lines(io.TextIOBase):
    """A text stream that sends every line."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = ""

    def write(self, text: str) -> int:
        """Send the lines that end in a text."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._send(Said(line))
        return len(text)


def ready(opening: Opening) -> Ready:
    """What this process measures with."""
    from specbench.models.loading import choose_device
    from specbench.results.environment import environment
    from specbench.threads import set_threads

    set_threads(opening.threads, False)
    found = environment(str(choose_device(opening.device)), "", "")
    return Ready(socket.gethostname(), os.getpid(), found["device"], found["versions"], found["commit"])
