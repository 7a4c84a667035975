"""The program of a worker's process: it does one job after another and sends what happens as events."""

import io
import os
import pickle
import queue
import socket
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import IO, Any

from specbench.core import console
from specbench.core.environment import set_threads, share_machine
from specbench.core.errors import ConfigError
from specbench.models.loading import choose_device
from specbench.models.machine import environment
from specbench.publish.workers import (
    Event,
    JobFinished,
    JobStarted,
    LogLine,
    RunJob,
    Send,
    TrialRecorded,
    WorkerReady,
    WorkerSettings,
    failure_reason,
)
from specbench.records.records import Record
from specbench.running.events import RunListener
from specbench.running.models import ModelCache
from specbench.running.plan import Trial


def main() -> None:
    """Does one job after another until one leaves the process in an unknown state."""
    messages, events = take_streams()

    def send(event: Event) -> None:
        pickle.dump(event, events)
        events.flush()

    send_lines(send)
    settings = pickle.load(messages)
    jobs = queue.SimpleQueue[RunJob]()
    threading.Thread(target=receive_jobs, args=(messages, jobs), daemon=True).start()
    send(worker_ready(settings))
    cache = ModelCache()
    is_sound = True
    while is_sound:
        job = jobs.get()
        started = time.monotonic()
        failure, is_sound = run_job(job, cache, send)
        send(JobFinished(failure, time.monotonic() - started, is_last=not is_sound))
    sys.exit(0)


def take_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Returns the streams of messages to this process and from it. The output of libraries goes to standard error."""
    messages, events = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return messages, events


def receive_jobs(messages: IO[bytes], jobs: "queue.SimpleQueue[RunJob]") -> None:
    """Puts every job that arrives into a queue. If the sender is gone, this process ends at once."""
    try:
        while True:
            jobs.put(pickle.load(messages))
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(1)


class SendingListener(RunListener):
    """Sends every recorded trial as an event."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def trials_started(self, trials: Sequence[Trial]) -> None:
        self._send(JobStarted(num_trials=len(trials)))

    def trial_recorded(self, trial: Trial, record: Record, is_new: bool) -> None:
        self._send(TrialRecorded(record, is_new))


def run_job(
    job: RunJob, cache: Any, send: Send, make_listener: type[SendingListener] = SendingListener
) -> tuple[str | None, bool]:
    """Runs a job. `make_listener`: the class of what hears its trials.

    Returns the reason why the job failed (None if it did not), and whether the process can go on. It cannot after an
    error that is not the user's mistake, or if memory ran out, since the state of the accelerator is then unknown.
    """
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
            from specbench.analysis.fairness import fairness

            cache.drop()  # `specbench fairness` loads its own models
            report = fairness.fairness_report([str(job.folder)], replace(job.request.options, subsets=None))
            added = fairness.add_fairness(job.folder / "leaderboard.json", report)
            console.say(console.stderr, f"fairness: {added}")
    except ConfigError as error:
        return str(error), error.__cause__ is None or not is_out_of_memory(error.__cause__)
    except Exception as error:
        return failure_reason(error), False
    return None, True


class LineWriter(io.TextIOBase):
    """A text stream that sends every line as an event."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._partial_line = ""

    def write(self, text: str) -> int:
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        for line in lines:
            self._send(LogLine(line))
        return len(text)


def send_lines(send: Send) -> None:
    console.stderr.file = LineWriter(send)  # type: ignore[assignment]
    warnings.showwarning = console.show_warning


def worker_ready(settings: WorkerSettings) -> WorkerReady:
    set_threads(settings.threads, False)
    found = environment(str(choose_device(settings.device)), "", "")
    return WorkerReady(socket.gethostname(), os.getpid(), found["device"], found["versions"], found["commit"])
