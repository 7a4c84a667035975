"""A suite from its cells to its rows: an estimate, what is missing measured, all of it collected."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from specbench.core.console import INTERRUPTED, PlainConsole, say
from specbench.core.errors import ConfigError
from specbench.core.files import locked
from specbench.core.resources import EMBEDDED
from specbench.models.loading import choose_device
from specbench.publish.measurement import Asked, Outcome, reason_of
from specbench.publish.suite.cells import Cell, folder_of
from specbench.publish.suite.forecast import Estimate, Forecast, Group, cells_in, shown
from specbench.publish.suite.process import MeasuringProcess
from specbench.publish.suite.tables import Watch, rows_table
from specbench.publish.suite.workers import Crew, Finished, Job, Machines, Opening, Worker
from specbench.results.adding import add_rows
from specbench.results.comparable import check_together
from specbench.results.leaderboard import check_writable, load
from specbench.results.row import Row

MAX_LOSSES = 3  # workers that one cell may cost


@dataclass
class Collected:
    """What became of the cells, and the rows of those that have some, in a leaderboard as they come."""

    leaderboard: Path
    outcomes: list[Outcome]
    rows: list[tuple[Cell, Sequence[Row]]]
    losses: Sequence[str] = ()

    def add(self, cell: Cell, was_measured: bool, failure: str | None = None) -> str | None:
        """Take a cell in; why it has failed, if it has."""
        try:
            if failure is None:
                rows = cell.measurement.rows()
                add_rows(self.leaderboard, rows, cell.folder)
                self.rows.append((cell, rows))
        except ConfigError as error:
            failure = reason_of(error)
        self.outcomes.append(Outcome(cell.name, cell.folder, was_measured, failure))
        return failure


def run_suite(forecast: Forecast, workers: Sequence[Worker], leaderboard: Path, console: Console) -> Collected:
    """Measure what is missing. Raises ConfigError before anything is measured for a leaderboard that cannot take the
    rows, and for workers that do not go together."""
    missing = [number for number, planned in enumerate(forecast.plan) if not planned.is_measured]
    collected = Collected(leaderboard, [], [])
    check_takes_measured(leaderboard, [planned.cell for planned in forecast.plan if planned.is_measured])
    say(console, f"{cells_in(forecast)}, {len(forecast.plan) - len(missing)} measured already")
    for planned in forecast.plan:
        if planned.is_measured:
            collected.add(planned.cell, True)
    if missing:
        watch, machines = Watch(console, forecast, len(workers)), Machines(leaderboard)
        with watch, Crew(workers, machines.accept, watch.tell) as crew:
            machines.check_leaderboard()
            if line := machines.crowded():
                say(console, line)
            measure(crew, watch, forecast, missing, collected, console, machines.num_sharing())
        collected.losses = watch.losses
    return collected


def check_takes_measured(leaderboard: Path, cells: Sequence[Cell]) -> None:
    """Raise ConfigError for a leaderboard that cannot be written, is broken, or has rows that do not go together with
    those that are measured already."""
    check_writable(leaderboard)
    if leaderboard.exists() and (there := load(leaderboard)):
        rows = [(str(cell.folder), row) for cell in cells for row in cell.measurement.rows()]
        check_together([*((f"{leaderboard}: rows.{number}", row) for number, row in enumerate(there)), *rows])


def measure(
    crew: Crew, watch: Watch, forecast: Forecast, missing: Sequence[int], collected: Collected, console: Console,
    num_sharing: int,
) -> None:  # fmt: skip
    """First one example of every task on every pair that nothing is known of: its records are the cells' own."""
    if first := unknown(forecast, missing):
        say(console, f"measuring one example of each task on each pair ({len(first)}), to tell how long the rest takes")
        watch.start(first, True, max_losses=1)
        jobs = [job_of(forecast.plan[number].cell, num_sharing, first_only=True) for number in first]
        crew.run(jobs, 1, lambda job, event: None)
    estimate, started = forecast.total(crew.num_workers), time.monotonic()
    say(console, line_of(estimate, forecast, len(missing), bool(first)))

    def ended(job: int, event: Finished) -> None:
        failure = collected.add(forecast.plan[missing[job]].cell, False, event.failure)
        watch.ended(missing[job], replace(event, failure=failure))

    watch.start(missing, False, MAX_LOSSES)
    crew.run([job_of(forecast.plan[number].cell, num_sharing) for number in missing], MAX_LOSSES, ended)
    told = f"; estimated were {shown(estimate.seconds)}, at most {shown(estimate.most)}" if not estimate.unknown else ""
    say(console, f"it took {shown(time.monotonic() - started)}{told}")


def unknown(forecast: Forecast, missing: Sequence[int]) -> list[int]:
    """Of every pair and task that nothing is known of, the cell with the most methods; those of the pair that is
    measured first last, so that its models are there then. A pair and task with one example alone need none."""
    found: dict[Group, int] = {}
    for number in missing:
        planned = forecast.plan[number]
        work = sum(forecast.plan[other].num_blocks for other in missing if forecast.plan[other].group == planned.group)
        if forecast.evidence[planned.group].num_records or work == 1:
            continue
        best = found.setdefault(planned.group, number)
        if len(planned.methods) > len(forecast.plan[best].methods):
            found[planned.group] = number
    return list(found.values())[::-1]


def job_of(cell: Cell, num_sharing: int, first_only: bool = False) -> Job:
    """What a worker is asked for; `first_only`: the first example of the first subset."""
    measurement = cell.measurement
    if first_only:
        limited = {**measurement.options, "limit": 1, "subsets_per_task": 1}
        measurement = replace(measurement, options=limited)
    return Job(measurement.request(), measurement.allow_code_execution, Path.cwd(), num_sharing)


def line_of(estimate: Estimate, forecast: Forecast, num_missing: int, has_tried: bool) -> str:
    """The estimate in words, with what it rests on. `has_tried`: whether examples were measured for it."""
    if estimate.unknown == num_missing:
        why = "nothing like these cells could be measured" if has_tried else "each task and pair has one example alone"
        return f"estimated time: unknown, since {why}"
    num_records = sum(each.num_records for each in forecast.evidence.values())
    without = f"; {estimate.unknown} cells are not in it, nothing like them is measured" if estimate.unknown else ""
    return (
        f"estimated time: about {shown(estimate.seconds)}, at most {shown(estimate.most)} if every answer has all "
        f"tokens it may have; at the speeds of {num_records} measured example{'s' if num_records > 1 else ''}{without}"
    )


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other processes from running the same suite. Raises ConfigError where one does."""
    try:
        with locked(folder / ".lock", wait=False):
            yield
    except BlockingIOError as error:
        raise ConfigError(f"{folder}: another process runs this suite: wait for it, or give another --runs") from error
    except OSError as error:
        raise ConfigError(f"{folder}: cannot write there ({error.strerror or error}): give another --runs") from error


@contextmanager
def saying_how_to_go_on(console: Console, folder: Path) -> Iterator[None]:
    """An interrupt ends a suite with one line."""
    try:
        yield
    except KeyboardInterrupt:
        say(console, f"interrupted: everything measured is kept in {folder}; the same command resumes it")
        sys.exit(INTERRUPTED)


def measure_suite(
    forecast: Forecast, asked: Asked, ray: str | None, num_workers: int | None, leaderboard: Path | None
) -> Collected:
    """Measure what is missing of a suite, by one process of this machine or by the workers of a cluster."""
    folder = folder_of(forecast.plan[0].cell.suite, asked)
    console = PlainConsole(stderr=True)
    console.file = sys.stderr  # this one, whatever becomes of the name while ray is there
    if ray is None and num_workers is not None:
        raise ConfigError(f"--workers {num_workers}: these are workers of --ray: add --ray local, or leave it out")
    opening = opening_of(forecast, asked, ray is not None)
    missing = sum(not planned.is_measured for planned in forecast.plan)
    if ray is not None and missing:
        say(console, f"--ray {ray}: starting the workers")
    with (
        one_at_a_time(folder),
        saying_how_to_go_on(console, folder),
        crew_of(ray if missing else None, num_workers, missing, opening, folder) as workers,
    ):
        return run_suite(forecast, workers, leaderboard or folder / "leaderboard.json", console)


@contextmanager
def crew_of(
    ray: str | None, num_workers: int | None, num_cells: int, opening: Opening, folder: Path
) -> Iterator[Sequence[Worker]]:
    """The workers: one process of this machine, or those of a cluster."""
    if ray is None:
        yield [MeasuringProcess(opening)]
        return
    from specbench.publish.suite.cluster import ray_workers

    with ray_workers(ray, num_workers, num_cells, opening, folder / "ray.log") as workers:
        yield workers


def opening_of(forecast: Forecast, asked: Asked, on_cluster: bool) -> Opening:
    """What every worker measures with. Raises ConfigError where cells would differ in their number of CPU threads: rows
    with another number do not compare."""
    embedded = [(planned.cell.pair.target or EMBEDDED).startswith(EMBEDDED) for planned in forecast.plan]
    if asked.threads is not None or all(embedded):
        return Opening(asked.device, asked.threads or 1)
    if not on_cluster and any(embedded) and choose_device(asked.device).type == "cpu":
        raise ConfigError(
            "the embedded pair measures with 1 CPU thread and other pairs with all, and such rows do not compare: say "
            "how many all have: --threads 1, or another number"
        )
    return Opening(asked.device, asked.threads)


def show(collected: Collected, forecast: Forecast, console: Console) -> None:
    """The rows, the workers that were lost, and what failed with the command that repeats it alone."""
    if collected.rows:
        console.print(rows_table(collected.rows, forecast.plan))
    for line in collected.losses:
        console.print(f"lost: {line}", soft_wrap=True)
    commands = {planned.cell.name: planned.cell.measurement.command for planned in forecast.plan}
    failed = [outcome for outcome in collected.outcomes if outcome.failure is not None]
    if failed:
        console.print(f"\n{len(failed)} of {cells_in(forecast)} FAILED:", soft_wrap=True)
    for outcome in failed:
        console.print(f"{outcome.name}: {outcome.failure}\n  {commands[outcome.name]}", soft_wrap=True)
    if collected.rows:
        console.print(f"rows: {collected.leaderboard}", soft_wrap=True)
