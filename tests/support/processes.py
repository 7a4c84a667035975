"""Processes of their own for the console script, to be interrupted and killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

from specbench.__main__ import main
from specbench.publish.worker_program import run_job, worker_ready
from specbench.publish.workers import Event, JobFinished, RunJob, WorkerReady, WorkerSettings
from specbench.running.models import ModelCache
from specbench.running.request import Request
from specbench.specs.run_options import RunOptions

SHORT_WARM_UPS = """
from specbench.running import warm_up
warm_up.NUM_NEW_TOKENS, warm_up.is_steady = 4, lambda times: True
"""  # `shorten_warm_ups` for a program of its own
IMPORTED = ["specbench.cli", "specbench.running.execute", "transformers.models.llama.modeling_llama"]


def started(argv: list[str], cwd: Path | None = None, stderr: Path | str = os.devnull) -> BaseProcess:
    """The console script with these words, and short warm-ups. All processes are forked from one that has imported
    what a run imports, which takes longer than the run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=_main_with, args=(argv, cwd, str(stderr)))
    process.start()
    return process


def subprocess_in_process(specbench: Callable[..., tuple[int, str, str]]) -> SimpleNamespace:
    """Returns a replacement for the module `subprocess` in a script that runs specbench. Commands run in this process,
    which imports nothing again and whose warm-ups are short."""

    def run(command: Sequence[str], *, check: bool, **options: object) -> subprocess.CompletedProcess[str]:
        code, out, err = specbench(*command[list(command).index("specbench") + 1 :])
        assert not (check and code), err
        return subprocess.CompletedProcess(command, code, out, err)

    return SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL)


def shorten_warm_ups(patch: pytest.MonkeyPatch) -> None:
    """Makes every warm-up one block of 4 tokens: how many it takes until it is steady depends on the machine's load."""
    patch.setattr("specbench.running.warm_up.NUM_NEW_TOKENS", 4)
    patch.setattr("specbench.running.warm_up.is_steady", lambda times: True)


def _main_with(argv: list[str], cwd: Path | None, stderr: str) -> None:
    if cwd is not None:
        os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background of a shell ignores
    shorten_warm_ups(pytest.MonkeyPatch())
    sys.argv = argv
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = open(stderr, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
    main()


class InProcess:
    """A worker in the process of the tests, which imports nothing again."""

    name = "the test's process"

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings

    def open(self) -> WorkerReady:
        return worker_ready(self.settings)

    def events(self, job: RunJob) -> Iterator[Event]:
        sent: list[Event] = []
        failure, is_sound = run_job(job, ModelCache(), sent.append)
        yield from [*sent, JobFinished(failure, is_last=not is_sound)]

    def close(self) -> None: ...


def job() -> RunJob:
    return RunJob(Request([], [], RunOptions(), "", output=Path("x")))
