"""Measures a suite: estimates the time, measures the missing cells, and puts all rows into a leaderboard."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn

from specbench.core.console import PlainConsole, counted, say
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.files import ResumableFolder
from specbench.core.progress import ProgressBar
from specbench.models.loading import choose_device
from specbench.publish.forecast import Forecast, Group, TimeEstimate, format_duration, generation_seconds
from specbench.publish.process import MeasuringProcess
from specbench.publish.suite_runs import FOLDER, SuiteRun
from specbench.publish.tables import measured_table
from specbench.publish.workers import (
    BlockRecorded,
    Event,
    JobFinished,
    JobStarted,
    LogLine,
    MachineCheck,
    RunJob,
    WorkerLost,
    WorkerPool,
    WorkerProcess,
    WorkerReady,
    WorkerSettings,
    failure_reason,
)
from specbench.results.conditions import check_accepts_rows, check_together
from specbench.results.leaderboard import check_writable, load
from specbench.results.leaderboard_files import add_rows
from specbench.results.row import Row
from specbench.running.progress import report_kept_results
from specbench.specs.run import read_servers
from specbench.specs.run_options import RunOptions

MAX_LOSSES = 3  # a cell fails after it has lost so many workers


class SuiteMeasurement:
    """Measures the missing cells, and reports every event of the workers. `rows`: of the measured cells; they are also
    added to the leaderboard. `failures`: the failed cells with their reasons. `losses`: a line for each worker that was
    lost during a job."""

    def __init__(self, forecast: Forecast, num_workers: int, leaderboard: Path, console: Console) -> None:
        self.forecast, self.leaderboard, self._console, self._num_workers = forecast, leaderboard, console, num_workers
        self.rows: list[tuple[SuiteRun, Sequence[Row]]] = []
        self.failures: list[tuple[SuiteRun, str]] = []
        self.losses: list[str] = []
        self.first_only = False  # whether only the first example of each cell is measured
        self._cells: Sequence[int] = ()  # the cell of each job
        self._generating: dict[int, float] = {}  # seconds by cell
        self._num_ended = 0
        self.bar = ProgressBar(console, "starting", None, MofNCompleteColumn(), redirect=False)

    def add(self, cell: SuiteRun, failure: str | None = None) -> str | None:
        """Adds the rows of a cell. Returns the reason why it failed; None if it did not."""
        try:
            if failure is None:
                rows = cell.rows()
                add_rows(self.leaderboard, rows, cell.folder)
                self.rows.append((cell, rows))
        except ConfigError as error:
            failure = failure_reason(error)
        if failure is not None:
            self.failures.append((cell, failure))
        return failure

    def measure(self, pool: WorkerPool, missing: Sequence[int], num_sharing: int) -> None:
        """Measures one example of every task and pair without measured times, then all missing cells. The records of
        the examples belong to the cells."""
        if first := cells_to_try(self.forecast, missing):
            line = f"measuring one example of each task on each pair ({len(first)}) to estimate the time of the rest"
            say(self._console, line)
            self._run(pool, first, num_sharing, lambda job, event: None, first_only=True)
        estimate, started = self.forecast.total(pool.num_workers), time.monotonic()
        say(self._console, estimate_line(estimate, self.forecast, len(missing), bool(first)))
        self._run(pool, missing, num_sharing, self._finish)
        estimated = f"; the estimate was {format_duration(estimate.seconds)}, at most {format_duration(estimate.most)}"
        took = f"it took {format_duration(time.monotonic() - started)}"
        say(self._console, took if estimate.unknown else f"{took}{estimated}")

    def _run(
        self, pool: WorkerPool, cells: Sequence[int], num_sharing: int, finish: Callable[[int, JobFinished], None],
        first_only: bool = False,
    ) -> None:  # fmt: skip
        self._cells, self.first_only = cells, first_only
        jobs = [cell_job(self.forecast.plan[number].cell, num_sharing, first_only) for number in cells]
        pool.run(jobs, 1 if first_only else MAX_LOSSES, finish)

    def report(self, worker: str, job: int | None, event: Event) -> None:
        """Handles one event, and prints a line if it matters to the user."""
        if job is None:
            if self._num_workers > 1 and isinstance(event, WorkerReady):
                say(self._console, f"{worker} is ready: {event.device}, on {event.host}")
            elif isinstance(event, WorkerLost):
                say(self._console, f"{worker} cannot be started: {event.reason}")
            return
        cell = self._cells[job]
        name = self.forecast.plan[cell].cell.name
        if isinstance(event, LogLine):
            say(self._console, f"{name}: {event.line}" if self._num_workers > 1 else event.line)
        elif isinstance(event, JobStarted):
            self._generating[cell] = 0.0
        elif isinstance(event, BlockRecorded) and event.measured:
            self.forecast.add(cell, event.record)
            self._generating[cell] = self._generating.get(cell, 0.0) + generation_seconds(event.record)
            self._show_progress(name)
        elif isinstance(event, WorkerLost):
            then = "it is given up" if event.is_last else "it goes back into the queue with its records"
            self.losses.append(f"{name}: {worker} was lost: {event.reason}: {then}")
            say(self._console, self.losses[-1])
        elif isinstance(event, JobFinished) and event.failure is None:
            rest = event.seconds - event.load_seconds - self._generating.pop(cell, 0.0)
            self.forecast.learn(cell, event.load_seconds, max(0.0, rest))

    def _finish(self, job: int, event: JobFinished) -> None:
        """Adds the rows of a cell, and reports that it is measured or has failed."""
        planned, self._num_ended = self.forecast.plan[self._cells[job]], self._num_ended + 1
        failure = self.add(planned.cell, event.failure)
        planned.is_measured = True
        state = f"measured in {format_duration(event.seconds)}" if failure is None else f"FAILED: {failure}"
        say(self._console, f"[{self._num_ended}/{len(self._cells)}] {planned.cell.name}: {state}{self._left()}")

    def _show_progress(self, name: str) -> None:
        plan = [self.forecast.plan[number] for number in self._cells]
        done, total = sum(each.num_done for each in plan), sum(each.num_blocks for each in plan)
        line = "measuring first examples" if self.first_only else f"{name}{self._left()}"
        self.bar.update(line, done, f"{done}/{total} examples · {line}", total=total)

    def _left(self) -> str:
        seconds = self.forecast.total(self._num_workers).seconds
        return f" · about {format_duration(seconds)} left" if seconds >= 1 else ""


def run_suite(
    forecast: Forecast, processes: Sequence[WorkerProcess], leaderboard: Path, console: Console
) -> SuiteMeasurement:  # fmt: skip
    """Measures the missing cells. Raises ConfigError before any measurement if the leaderboard cannot take the rows, or
    if the workers differ."""
    missing = [number for number, planned in enumerate(forecast.plan) if not planned.is_measured]
    measured = [planned.cell for planned in forecast.plan if planned.is_measured]
    run = SuiteMeasurement(forecast, len(processes), leaderboard, console)
    for file in dict.fromkeys(forecast.plan[number].cell.request.servers for number in missing):
        if file is not None:
            check_accepts_rows(leaderboard, read_servers(file).device)
    check_takes_measured(leaderboard, measured)
    say(console, f"{counted(len(forecast.plan), 'cell')}, {len(measured)} measured already")
    for cell in measured:
        run.add(cell)
    if missing:
        machines = MachineCheck(leaderboard)
        with run.bar, WorkerPool(processes, machines.accept, run.report) as pool:
            if not forecast.plan[0].cell.suite.is_served:  # else the servers' machine counts, not the worker's
                machines.check_leaderboard()
            if line := machines.sharing_warning():
                say(console, line)
            run.measure(pool, missing, machines.num_sharing())
    return run


def check_takes_measured(leaderboard: Path, cells: Sequence[SuiteRun]) -> None:
    """Raises ConfigError for a leaderboard that cannot be written, is broken, or has rows that may not share a file
    with the rows of measured cells."""
    check_writable(leaderboard)
    if leaderboard.exists() and (there := load(leaderboard)):
        rows = [(str(cell.folder), row) for cell in cells for row in cell.rows()]
        check_together([*((f"{leaderboard}: rows.{number}", row) for number, row in enumerate(there)), *rows])


def cells_to_try(forecast: Forecast, missing: Sequence[int]) -> list[int]:
    """Returns for every pair and task without measured times the cell with the most methods, unless it has only one
    example. The first pair comes last, so that its models stay loaded."""
    found: dict[Group, int] = {}
    for number in missing:
        planned = forecast.plan[number]
        work = sum(forecast.plan[other].num_blocks for other in missing if forecast.plan[other].group == planned.group)
        if forecast.measured[planned.group].num_records or work == 1:
            continue
        best = found.setdefault(planned.group, number)
        if len(planned.methods) > len(forecast.plan[best].methods):
            found[planned.group] = number
    return list(found.values())[::-1]


def cell_job(cell: SuiteRun, num_sharing: int, first_only: bool = False) -> RunJob:
    """Returns the job of a cell. `first_only`: only the first example of its first subset."""
    if not first_only:
        return RunJob(cell.request, Path.cwd(), cell.task.fairness, num_sharing)
    options = replace(cell.request.options, limit=1, subsets_per_task=1)
    return RunJob(replace(cell.request, options=options), Path.cwd(), num_sharing=num_sharing)


def estimate_line(estimate: TimeEstimate, forecast: Forecast, num_missing: int, has_tried: bool) -> str:
    """Returns the estimate in words, and the number of examples behind it. `has_tried`: whether examples were measured
    for it."""
    if estimate.unknown == num_missing:
        why = "no cell like these could be measured" if has_tried else "each task and pair has only one example"
        return f"estimated time: unknown, since {why}"
    num_records = sum(each.num_records for each in forecast.measured.values())
    without = f"; it leaves out {estimate.unknown} cells, since no cell like them is measured"
    return (
        f"estimated time: about {format_duration(estimate.seconds)}, at most {format_duration(estimate.most)} if every "
        f"answer has the greatest length; at the speeds of {counted(num_records, 'measured example')}"
        f"{without if estimate.unknown else ''}"
    )


def measure_suite(
    forecast: Forecast, ray: str | None, num_workers: int | None, leaderboard: Path | None
) -> SuiteMeasurement:
    """Measures the missing cells of a suite in one process of this machine, or with the workers of a ray cluster."""
    cell = forecast.plan[0].cell
    folder = cell.runs / FOLDER / cell.suite.name
    console = PlainConsole(stderr=True)
    console.file = sys.stderr  # keeps this stream when ray replaces sys.stderr
    if ray is None and num_workers is not None:
        raise ConfigError(f"--workers {num_workers}: needs --ray: add --ray local, or leave it out")
    if ray is not None and cell.suite.is_served:
        raise ConfigError(f"--ray {ray}: workers would disturb each other at the servers: leave it out")
    settings = worker_settings(forecast, cell.options, ray is not None)
    missing = sum(not planned.is_measured for planned in forecast.plan)
    workers: AbstractContextManager[Sequence[WorkerProcess]] = nullcontext([MeasuringProcess(settings)])
    if ray is not None and missing:
        from specbench.publish.ray_workers import ray_workers

        say(console, f"--ray {ray}: starting the workers")
        workers = ray_workers(ray, num_workers, missing, settings, folder / "ray.log")
    with ResumableFolder(folder, "--runs").held(), report_kept_results(console, folder), workers as processes:
        return run_suite(forecast, processes, leaderboard or folder / "leaderboard.json", console)


def worker_settings(forecast: Forecast, options: RunOptions, on_cluster: bool) -> WorkerSettings:
    """Returns the settings of all workers. Raises ConfigError if cells would have different numbers of CPU threads,
    since such rows do not compare."""
    cells = [planned.cell for planned in forecast.plan if not planned.cell.suite.is_served]
    embedded = [(cell.pair.target or EMBEDDED).startswith(EMBEDDED) for cell in cells]
    if options.threads is not None or all(embedded):
        return WorkerSettings(options.device, options.threads or 1)
    if not on_cluster and any(embedded) and choose_device(options.device).type == "cpu":
        raise ConfigError(
            "the embedded pair uses 1 CPU thread and other pairs use all, and such rows do not compare: give the same "
            "number to all pairs: --threads 1, or another number"
        )
    return WorkerSettings(options.device, options.threads)


def show(result: SuiteMeasurement, console: Console) -> None:
    """Prints the rows, the lost workers, and the failed cells with the commands that repeat them."""
    if result.rows:
        order = {planned.cell.name: number for number, planned in enumerate(result.forecast.plan)}
        measured = sorted(result.rows, key=lambda each: order[each[0].name])
        console.print(measured_table(f"{measured[0][0].suite.name} · all subsets", measured))
    for line in result.losses:
        console.print(f"lost: {line}", soft_wrap=True)
    if result.failures:
        cells = counted(len(result.forecast.plan), "cell")
        console.print(f"\n{len(result.failures)} of {cells} FAILED:", soft_wrap=True)
    for cell, failure in result.failures:
        console.print(f"{cell.name}: {failure}\n  {cell.request.command}", soft_wrap=True)
    if result.rows:
        console.print(f"rows: {result.leaderboard}", soft_wrap=True)
