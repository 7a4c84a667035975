"""A process that measures, seen from outside: started when it is needed, asked, ended."""

import gc
import io
import os
import pickle
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch

from specbench.core import console
from specbench.core.errors import ConfigError
from specbench.core.resources import PACKAGE
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.publish.suite.workers import Begun, Event, Finished, Job, Lost, Opening, Ready, Recorded, Said
from specbench.running.models import Models, load_models
from specbench.specs.run import RunSpec

PROGRAM = "from specbench.publish.suite.process import main; main()"


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
    from specbench.core.threads import share_machine
    from specbench.models.devices import is_out_of_memory
    from specbench.publish.measurement import reason_of
    from specbench.results.execute import execute
    from specbench.tasks.sandbox import run as permission

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
    from specbench.core.threads import set_threads
    from specbench.models.loading import choose_device
    from specbench.results.environment import environment

    set_threads(opening.threads, False)
    found = environment(str(choose_device(opening.device)), "", "")
    return Ready(socket.gethostname(), os.getpid(), found["device"], found["versions"], found["commit"])


class KeptModels:
    """Models by what they were loaded with. Another target drops them all before it is loaded, so that two pairs are
    never in memory together. `load_seconds`: of the last run."""

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], CausalLM] = {}
        self._used: set[tuple[Any, ...]] = set()
        self.load_seconds = 0.0

    def __call__(self, spec: RunSpec) -> Models:
        """The models of a run, those of the last one where it shares them; its others are dropped."""
        started, self.load_seconds = time.monotonic(), 0.0
        self._used = set()
        target = _key(
            spec.target, revision=spec.target_revision, dtype=spec.dtype, device=spec.device, engine=spec.engine
        )
        if target not in self._held:
            self.drop()
        models = load_models(spec, self._load)
        for key in self._held.keys() - self._used:
            del self._held[key]
        self.load_seconds = time.monotonic() - started
        return models

    def _load(self, name: str, **options: Any) -> CausalLM:
        key = _key(name, **options)
        self._used.add(key)
        if key not in self._held:
            self._held[key] = load_model(name, **options)
        return self._held[key]

    def drop(self) -> None:
        """Free the memory of all models."""
        self._held.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _key(name: str, **options: Any) -> tuple[Any, ...]:
    return (name, *sorted(options.items()))
