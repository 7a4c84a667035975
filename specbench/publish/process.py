"""A process that measures: the parent side, which sends jobs and receives events, and the program of the process."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch

from specbench.core import console
from specbench.core.environment import PACKAGE
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.publish.workers import (
    BlockRecorded,
    Event,
    JobFinished,
    JobStarted,
    LogLine,
    RunJob,
    WorkerLost,
    WorkerReady,
    WorkerSettings,
    failure_reason,
)
from specbench.records.generation import Record
from specbench.running.events import RunListener
from specbench.running.models import LoadedModels, load_models
from specbench.running.plan import Trial
from specbench.specs.run import RunSpec

PROGRAM = "from specbench.publish.process import main; main()"


class ChildProcess:
    """A process that runs a program of specbench and exchanges messages with this process over its standard streams.

    `python`: the interpreter; None is this one with this package. `folder`: its working folder; None is that of this
    process. The standard error is kept for `loss`.
    """

    def __init__(self, program: str, python: str | None = None, folder: Path | None = None) -> None:
        self._program, self._python, self._folder = program, python, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def start(self) -> None:
        """Starts a new process in place of the old one."""
        self.close()
        paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        own = {"PYTHONPATH": os.pathsep.join(paths)} if self._python is None else {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(  # in its own process group, so that an interrupt reaches only the parent
            [self._python or sys.executable, "-P", "-X", "faulthandler", "-c", self._program], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True, env={**variables, **own},
            cwd=self._folder,
        )  # fmt: skip

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        """The streams of messages to the process and from it."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        """Ends the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                with suppress(OSError):
                    if stream is not None:
                        stream.close()
            self._process = None

    def loss(self) -> str:
        """Returns how the process ended, with the first line of a crash or the last line of a traceback."""
        assert self._process is not None and self._errors is not None
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        fatal = [line for line in lines if line.startswith("Fatal Python error")]
        last = (fatal or lines[-1:] or [""])[0][:200]
        return f"its process ended {describe_exit(code)}{f': {last}' if last else ''}"


class MeasuringProcess(ChildProcess):
    """A process that measures on this machine. `open` starts it. If it ends during a job, the worker is lost."""

    name = "the measuring process"

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(PROGRAM)
        self._settings = settings

    def open(self) -> WorkerReady | WorkerLost:
        """Starts a new process and waits until it is ready."""
        self.start()
        (event,) = self._exchange(self._settings, WorkerReady)
        assert isinstance(event, WorkerReady | WorkerLost)
        return event

    def events(self, job: RunJob) -> Iterator[Event]:
        """Sends a job. Yields its events until it is finished or the process is lost."""
        return self._exchange(job, JobFinished)

    def _exchange(self, message: WorkerSettings | RunJob, last: type[WorkerReady | JobFinished]) -> Iterator[Event]:
        """Sends a message. Yields the events that follow, until one of the type `last` or a loss."""
        messages, events = self.streams
        event: Event | None = None
        try:
            pickle.dump(message, messages)
            messages.flush()
            while not isinstance(event, last):
                event = pickle.load(events)
                yield event
        except (EOFError, OSError, pickle.UnpicklingError, ValueError):
            yield WorkerLost(self.loss())


def describe_exit(code: int) -> str:
    """Describes an exit code in words."""
    if code >= 0:
        return f"with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        hint = ", as the system does where memory runs out" if name == "SIGKILL" else ""
        return f"by {name}{hint}"
    return f"by signal {-code}"


Send = Callable[[Event], None]


def main() -> None:
    """Does jobs until there are no more."""
    messages, events = take_streams()

    def send(event: Event) -> None:
        pickle.dump(event, events)
        events.flush()

    send_lines(send)
    settings, jobs = pickle.load(messages), queue.SimpleQueue[RunJob]()
    threading.Thread(target=receive_jobs, args=(messages, jobs, settings.scratch), daemon=True).start()
    send(worker_ready(settings))
    serve(jobs, send)


def take_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Returns the streams of messages to this process and from it. The output of libraries goes to standard error."""
    messages, events = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return messages, events


def receive_jobs(messages: IO[bytes], jobs: "queue.SimpleQueue[RunJob]", scratch: Path | None) -> None:
    """Puts every job that arrives into a queue. If the sender is gone, this process ends at once. No measurement is
    lost: the sender has received the records of a scratch folder."""
    try:
        while True:
            jobs.put(pickle.load(messages))
    except (EOFError, OSError, pickle.UnpicklingError):
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)


def serve(jobs: "queue.SimpleQueue[RunJob]", send: Send) -> None:
    """Does one job after another until one leaves the process in an unknown state."""
    cache = ModelCache()
    is_sound = True
    while is_sound:
        job = jobs.get()
        started = time.monotonic()
        failure, is_sound = run_job(job, cache, send)
        send(JobFinished(failure, time.monotonic() - started, cache.load_seconds, is_last=not is_sound))
    sys.exit(0)


class SendingListener(RunListener):
    """Sends every recorded trial as an event."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def trials_started(self, trials: Sequence[Trial]) -> None:
        self._send(JobStarted(num_blocks=len(trials)))

    def trial_recorded(self, trial: Trial, record: Record, is_new: bool) -> None:
        self._send(BlockRecorded(record, is_new))


def run_job(
    job: RunJob, cache: Any, send: Send, make_listener: type[SendingListener] = SendingListener
) -> tuple[str | None, bool]:
    """Runs a job. `make_listener`: the class of what hears its trials.

    Returns the reason why the job failed (None if it did not), and whether the process can go on. It cannot after an
    error that is not the user's mistake, or if memory ran out, since the state of the accelerator is then unknown.
    """
    from specbench.core.environment import share_machine
    from specbench.integrations.served.models import serving
    from specbench.models.devices import is_out_of_memory
    from specbench.running.execute import execute
    from specbench.tasks.sandbox import run as permission

    try:
        if job.cwd is not None and job.cwd.is_dir():
            os.chdir(job.cwd)
        permission.allow(job.request.options.allow_code_execution)
        share_machine(job.num_sharing)
        with serving() if job.request.servers is not None else nullcontext(cache) as load_pair:
            execute(job.request, console.stderr, load_pair, [make_listener(send)])
        if job.fairness:
            cache.drop()  # `specbench fairness` loads its own models
            add_fairness(job)
    except ConfigError as error:
        return str(error), error.__cause__ is None or not is_out_of_memory(error.__cause__)
    except Exception as error:
        return failure_reason(error), False
    return None, True


def add_fairness(job: RunJob) -> None:
    """Adds the numbers of `specbench fairness` to the rows of a job's folder, without the languages of free texts."""
    from specbench.analysis.fairness import fairness

    request = fairness.FairnessRequest([str(job.folder)], replace(job.request.options, subsets=None))
    added = fairness.add_fairness(job.folder / "leaderboard.json", fairness.fairness_report(request))
    console.say(console.stderr, f"fairness: {added}")


class LineWriter(io.TextIOBase):
    """A text stream that sends every line as an event."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._partial_line = ""

    def write(self, text: str) -> int:
        """Sends the lines that are complete with this text."""
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        for line in lines:
            self._send(LogLine(line))
        return len(text)


def send_lines(send: Send) -> None:
    """Sends every line and warning for the user as an event."""
    console.stderr.file = LineWriter(send)  # type: ignore[assignment]
    warnings.showwarning = console.show_warning


def worker_ready(settings: WorkerSettings) -> WorkerReady:
    """Returns the machine and the versions of this process."""
    from specbench.core.environment import set_threads
    from specbench.models.loading import choose_device
    from specbench.results.conditions import environment

    set_threads(settings.threads, False)
    found = environment(str(choose_device(settings.device)), "", "")
    return WorkerReady(socket.gethostname(), os.getpid(), found["device"], found["versions"], found["commit"])


class ModelCache:
    """Keeps loaded models by name and options. A new target first drops all of them, so that two pairs are never in
    memory together. `load_seconds`: the time in which the last run loaded its models."""

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], CausalLM] = {}
        self._used: set[tuple[Any, ...]] = set()
        self._target: list[Any] = []  # of the last run
        self.load_seconds = 0.0

    def __call__(self, spec: RunSpec) -> LoadedModels:
        """Returns the models of a run. Models of the last run that this one does not use are dropped."""
        started, self.load_seconds = time.monotonic(), 0.0
        self._used = set()
        target = [spec.target, spec.target_revision, spec.dtype, spec.device, spec.engine, spec.trust_remote_code]
        if target != self._target:
            self.drop()
        self._target = target
        models = load_models(spec, self._load)
        for key in self._held.keys() - self._used:
            del self._held[key]
        self.load_seconds = time.monotonic() - started
        return models

    def _load(self, name: str, **options: Any) -> CausalLM:
        key = (name, *sorted(options.items()))
        self._used.add(key)
        if key not in self._held:
            self._held[key] = load_model(name, **options)
        return self._held[key]

    def drop(self) -> None:
        """Frees the memory of all models. The next run frees it again, since other code may load models meanwhile."""
        self._held.clear()
        self._target = []
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
