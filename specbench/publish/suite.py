"""Measures a suite: estimates the time, measures the missing cells, and puts all rows into a leaderboard."""

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from specbench.core.console import PlainConsole, counted, say
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.files import ResumableFolder
from specbench.models.loading import choose_device
from specbench.publish.cells import SuiteCell, folder_of
from specbench.publish.forecast import Forecast, Group, SuiteProgress, TimeEstimate, count_cells, format_duration
from specbench.publish.process import MeasuringProcess
from specbench.publish.tables import measured_table
from specbench.publish.workers import (
    JobFinished,
    MachineCheck,
    RunJob,
    WorkerPool,
    WorkerProcess,
    WorkerSettings,
    failure_reason,
)
from specbench.results.conditions import check_accepts_rows, check_together
from specbench.results.leaderboard import check_writable, load
from specbench.results.leaderboard_files import add_rows
from specbench.results.row import Row
from specbench.running.progress import report_kept_results
from specbench.specs.run import RunOptions, read_servers

MAX_LOSSES = 3  # a cell fails after it has lost so many workers


@dataclass
class SuiteResult:
    """The rows of the cells, which are also added to the leaderboard, and the failed cells with their reasons.
    `losses`: a line for each lost worker."""

    leaderboard: Path
    rows: list[tuple[SuiteCell, Sequence[Row]]] = field(default_factory=list)
    failures: list[tuple[SuiteCell, str]] = field(default_factory=list)
    losses: Sequence[str] = ()

    def add(self, cell: SuiteCell, failure: str | None = None) -> str | None:
        """Adds a cell. Returns the reason why it failed; None if it did not."""
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


def run_suite(
    forecast: Forecast, processes: Sequence[WorkerProcess], leaderboard: Path, console: Console
) -> SuiteResult:
    """Measures the missing cells. Raises ConfigError before any measurement if the leaderboard cannot take the rows, or
    if the workers differ."""
    missing = [number for number, planned in enumerate(forecast.plan) if not planned.is_measured]
    result = SuiteResult(leaderboard)
    for file in dict.fromkeys(forecast.plan[number].cell.request.servers for number in missing):
        if file is not None:
            check_accepts_rows(leaderboard, read_servers(file).device)
    check_takes_measured(leaderboard, [planned.cell for planned in forecast.plan if planned.is_measured])
    say(console, f"{count_cells(forecast)}, {len(forecast.plan) - len(missing)} measured already")
    for planned in forecast.plan:
        if planned.is_measured:
            result.add(planned.cell)
    if missing:
        progress, machines = SuiteProgress(console, forecast, len(processes)), MachineCheck(leaderboard)
        with progress.bar, WorkerPool(processes, machines.accept, progress.report) as pool:
            if not forecast.plan[0].cell.suite.is_served:  # else the servers' machine counts, not the worker's
                machines.check_leaderboard()
            if line := machines.sharing_warning():
                say(console, line)
            measure(pool, progress, forecast, missing, result, console, machines.num_sharing())
        result.losses = progress.losses
    return result


def check_takes_measured(leaderboard: Path, cells: Sequence[SuiteCell]) -> None:
    """Raises ConfigError for a leaderboard that cannot be written, is broken, or has rows that may not share a file
    with the rows of measured cells."""
    check_writable(leaderboard)
    if leaderboard.exists() and (there := load(leaderboard)):
        rows = [(str(cell.folder), row) for cell in cells for row in cell.rows()]
        check_together([*((f"{leaderboard}: rows.{number}", row) for number, row in enumerate(there)), *rows])


def measure(
    pool: WorkerPool, progress: SuiteProgress, forecast: Forecast, missing: Sequence[int], result: SuiteResult,
    console: Console, num_sharing: int,
) -> None:  # fmt: skip
    """Measures one example of every task and pair without measured times, then all missing cells. The records of the
    examples belong to the cells."""
    if first := cells_to_try(forecast, missing):
        say(console, f"measuring one example of each task on each pair ({len(first)}) to estimate the time of the rest")
        progress.start(first, True, max_losses=1)
        jobs = [cell_job(forecast.plan[number].cell, num_sharing, first_only=True) for number in first]
        pool.run(jobs, 1, lambda job, event: None)
    estimate, started = forecast.total(pool.num_workers), time.monotonic()
    say(console, estimate_line(estimate, forecast, len(missing), bool(first)))

    def finish(job: int, event: JobFinished) -> None:
        failure = result.add(forecast.plan[missing[job]].cell, event.failure)
        progress.finish(missing[job], replace(event, failure=failure))

    progress.start(missing, False, MAX_LOSSES)
    pool.run([cell_job(forecast.plan[number].cell, num_sharing) for number in missing], MAX_LOSSES, finish)
    estimated = f"; the estimate was {format_duration(estimate.seconds)}, at most {format_duration(estimate.most)}"
    say(console, f"it took {format_duration(time.monotonic() - started)}{'' if estimate.unknown else estimated}")


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


def cell_job(cell: SuiteCell, num_sharing: int, first_only: bool = False) -> RunJob:
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
) -> SuiteResult:
    """Measures the missing cells of a suite in one process of this machine, or with the workers of a ray cluster."""
    cell = forecast.plan[0].cell
    folder = folder_of(cell.suite, cell.runs)
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


def show(result: SuiteResult, forecast: Forecast, console: Console) -> None:
    """Prints the rows, the lost workers, and the failed cells with the commands that repeat them."""
    if result.rows:
        order = {planned.cell.name: number for number, planned in enumerate(forecast.plan)}
        measured = sorted(result.rows, key=lambda each: order[each[0].name])
        console.print(measured_table(f"{measured[0][0].suite.name} · all subsets", measured))
    for line in result.losses:
        console.print(f"lost: {line}", soft_wrap=True)
    if result.failures:
        console.print(f"\n{len(result.failures)} of {count_cells(forecast)} FAILED:", soft_wrap=True)
    for cell, failure in result.failures:
        console.print(f"{cell.name}: {failure}\n  {cell.request.command}", soft_wrap=True)
    if result.rows:
        console.print(f"rows: {result.leaderboard}", soft_wrap=True)
