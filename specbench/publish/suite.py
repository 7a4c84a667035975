"""Measures a suite: the missing runs are jobs of workers, and all rows go into a leaderboard."""

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn

from specbench.core.console import PlainConsole, counted, say
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.files import ResumableFolder
from specbench.core.progress import ProgressBar, format_duration
from specbench.models.loading import choose_device
from specbench.publish.forecast import Forecast, estimate_line
from specbench.publish.suite_runs import FOLDER, SuiteRun
from specbench.publish.tables import measured_table
from specbench.publish.workers import (
    JobFinished,
    LogLine,
    MachineCheck,
    MeasuringProcess,
    RunJob,
    TrialRecorded,
    WorkerLost,
    WorkerPool,
    WorkerProcess,
    WorkerReady,
    WorkerSettings,
)
from specbench.results.conditions import check_accepts_rows, check_together
from specbench.results.leaderboard import check_writable, load
from specbench.results.leaderboard_files import add_rows
from specbench.results.row import Row
from specbench.running.progress import report_kept_results
from specbench.specs.run import read_servers
from specbench.specs.run_options import RunOptions

MAX_LOSSES = 3  # a run fails after it has lost so many workers


class SuiteMeasurement:
    """The outcome of a suite. `rows`: of the measured runs; they are also added to the leaderboard. `failures`: the
    failed runs with their reasons."""

    def __init__(self, forecast: Forecast, leaderboard: Path, console: Console) -> None:
        self.forecast, self.leaderboard, self._console = forecast, leaderboard, console
        self.rows: list[tuple[SuiteRun, Sequence[Row]]] = []
        self.failures: list[tuple[SuiteRun, str]] = []
        self._bar = ProgressBar(console, "starting", None, MofNCompleteColumn(), redirect=False)

    def add(self, run: SuiteRun, failure: str | None = None) -> str | None:
        """Adds the rows of a run. Returns the reason why it failed; None if it did not."""
        try:
            if failure is None:
                rows = run.rows()
                add_rows(self.leaderboard, rows, run.folder)
                self.rows.append((run, rows))
        except ConfigError as error:
            failure = str(error)
        if failure is not None:
            self.failures.append((run, failure))
        return failure

    def measure(self, processes: Sequence[WorkerProcess], missing: Sequence[int]) -> None:
        """Measures one example of every task and pair without measured times, then all missing runs. The records of
        the examples belong to the runs. `missing`: places in the plan. Raises ConfigError if the workers differ."""
        machines = MachineCheck(self.leaderboard)
        with self._bar, WorkerPool(processes) as pool:
            for worker, _, event in pool.opened():
                self._tell_of_worker(pool, machines, worker, event)
            if not self.forecast.plan[0].run.suite.is_served:  # else the servers' machine counts, not the worker's
                machines.check_leaderboard()
            if (number := machines.num_sharing()) > 1:
                line = f"{number} workers share the CPUs of a machine: such rows compare only with each other"
                say(self._console, line)
            if first := self.forecast.first_runs(missing):
                line = f"measuring one example of each task on each pair ({len(first)}) to estimate the time"
                say(self._console, line)
                self._run(pool, machines, first, first_only=True)
            say(self._console, estimate_line(self.forecast, pool.num_workers))
            started = time.monotonic()
            self._run(pool, machines, missing)
            say(self._console, f"it took {format_duration(time.monotonic() - started)}")

    def _run(self, pool: WorkerPool, machines: MachineCheck, places: Sequence[int], first_only: bool = False) -> None:
        plan = self.forecast.plan
        jobs = [job_of(plan[place].run, machines.num_sharing(), first_only) for place in places]
        generating = dict.fromkeys(places, 0.0)  # seconds
        num_ended = 0
        for worker, job, event in pool.run(jobs, 1 if first_only else MAX_LOSSES):
            if job is None:
                self._tell_of_worker(pool, machines, worker, event)
                continue
            place = places[job]
            name = plan[place].run.name
            match event:
                case LogLine(line):
                    say(self._console, f"{name}: {line}" if pool.num_workers > 1 else line)
                case TrialRecorded(record, measured=True):
                    generating[place] += self.forecast.add(place, record)
                    done = sum(plan[each].num_done for each in places)
                    total = sum(plan[each].num_trials or 0 for each in places)
                    line = "measuring first examples" if first_only else f"{name}{self._left(pool)}"
                    self._bar.update(line, done, f"{done}/{total} examples · {line}", total=total)
                case WorkerLost(reason, is_last):
                    then = "it is given up" if is_last else "it goes back into the queue with its records"
                    say(self._console, f"{name}: {worker} was lost: {reason}: {then}")
                case JobFinished(failure, seconds):
                    if failure is None:
                        self.forecast.overhead[plan[place].group] = max(0.0, seconds - generating[place])
                    if first_only:
                        continue
                    failure = self.add(plan[place].run, failure)
                    plan[place].is_measured = True
                    num_ended += 1
                    state = f"measured in {format_duration(seconds)}" if failure is None else f"FAILED: {failure}"
                    say(self._console, f"[{num_ended}/{len(places)}] {name}: {state}{self._left(pool)}")

    def _tell_of_worker(self, pool: WorkerPool, machines: MachineCheck, worker: str, event: object) -> None:
        match event:
            case WorkerReady():
                machines.accept(event)
                if pool.num_workers > 1:
                    say(self._console, f"{worker} is ready: {event.device}, on {event.host}")
            case WorkerLost(reason):
                say(self._console, f"{worker} cannot be started: {reason}")

    def _left(self, pool: WorkerPool) -> str:
        seconds = self.forecast.total(pool.num_workers).seconds
        return f" · about {format_duration(seconds)} left" if seconds >= 1 else ""


def run_suite(
    forecast: Forecast, processes: Sequence[WorkerProcess], leaderboard: Path, console: Console
) -> SuiteMeasurement:  # fmt: skip
    """Measures the missing runs. Raises ConfigError before any measurement for a leaderboard that cannot be written, is
    broken, or cannot take the rows, and if the workers differ."""
    # 1. Refuse a leaderboard whose rows may not share a file with those to come or those measured already.
    missing = [place for place, planned in enumerate(forecast.plan) if not planned.is_measured]
    measured = [planned.run for planned in forecast.plan if planned.is_measured]
    for file in dict.fromkeys(forecast.plan[place].run.request.servers for place in missing):
        if file is not None:
            check_accepts_rows(leaderboard, read_servers(file).device)
    check_writable(leaderboard)
    if leaderboard.exists() and (present := load(leaderboard)):
        rows = [(str(run.folder), row) for run in measured for row in run.rows()]
        check_together([*((f"{leaderboard}: rows.{number}", row) for number, row in enumerate(present)), *rows])
    # 2. Add the rows of measured runs, so that they are kept whatever follows.
    suite = SuiteMeasurement(forecast, leaderboard, console)
    say(console, f"{counted(len(forecast.plan), 'run')}, {len(measured)} measured already")
    for run in measured:
        suite.add(run)
    # 3. Measure the rest.
    if missing:
        suite.measure(processes, missing)
    return suite


def job_of(run: SuiteRun, num_sharing: int, first_only: bool = False) -> RunJob:
    """Returns the job of a run. `first_only`: only the first example of its first subset."""
    if not first_only:
        return RunJob(run.request, Path.cwd(), run.task.fairness, num_sharing)
    options = replace(run.request.options, limit=1, subsets_per_task=1)
    return RunJob(replace(run.request, options=options), Path.cwd(), num_sharing=num_sharing)


def measure_suite(
    forecast: Forecast, ray: str | None, num_workers: int | None, leaderboard: Path | None
) -> SuiteMeasurement:
    """Measures the missing runs of a suite in one process of this machine, or with the workers of a ray cluster."""
    run = forecast.plan[0].run
    folder = run.runs / FOLDER / run.suite.name
    console = PlainConsole(stderr=True)
    console.file = sys.stderr  # keeps this stream when ray replaces sys.stderr
    if ray is None and num_workers is not None:
        raise ConfigError(f"--workers {num_workers}: needs --ray: add --ray local, or leave it out")
    if ray is not None and run.suite.is_served:
        raise ConfigError(f"--ray {ray}: workers would disturb each other at the servers: leave it out")
    settings = worker_settings(forecast, run.options, ray is not None)
    missing = sum(not planned.is_measured for planned in forecast.plan)
    workers: AbstractContextManager[Sequence[WorkerProcess]] = nullcontext([MeasuringProcess(settings)])
    if ray is not None and missing:
        from specbench.publish.ray_workers import ray_workers

        say(console, f"--ray {ray}: starting the workers")
        workers = ray_workers(ray, num_workers, missing, settings, folder / "ray.log")
    with ResumableFolder(folder, "--runs").held(), report_kept_results(console, folder), workers as processes:
        return run_suite(forecast, processes, leaderboard or folder / "leaderboard.json", console)


def worker_settings(forecast: Forecast, options: RunOptions, on_cluster: bool) -> WorkerSettings:
    """Returns the settings of all workers. Raises ConfigError if runs would have different numbers of CPU threads,
    since such rows do not compare."""
    runs = [planned.run for planned in forecast.plan if not planned.run.suite.is_served]
    embedded = [(run.pair.target or EMBEDDED).startswith(EMBEDDED) for run in runs]
    if options.threads is not None or all(embedded):
        return WorkerSettings(options.device, options.threads or 1)
    if not on_cluster and any(embedded) and choose_device(options.device).type == "cpu":
        raise ConfigError(
            "the embedded pair uses 1 CPU thread and other pairs use all, and such rows do not compare: give the same "
            "number to all pairs: --threads 1, or another number"
        )
    return WorkerSettings(options.device, options.threads)


def show(result: SuiteMeasurement, console: Console) -> None:
    """Prints the rows, and the failed runs with the commands that repeat them."""
    if result.rows:
        order = {planned.run.name: place for place, planned in enumerate(result.forecast.plan)}
        measured = sorted(result.rows, key=lambda each: order[each[0].name])
        console.print(measured_table(f"{measured[0][0].suite.name} · all subsets", measured))
    if result.failures:
        runs = counted(len(result.forecast.plan), "run")
        console.print(f"\n{len(result.failures)} of {runs} FAILED:", soft_wrap=True)
    for run, failure in result.failures:
        console.print(f"{run.name}: {failure}\n  {run.request.command}", soft_wrap=True)
    if result.rows:
        console.print(f"rows: {result.leaderboard}", soft_wrap=True)
