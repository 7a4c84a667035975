"""A suite from its cells to its rows: an estimate, what is missing measured, all of it collected."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from specbench.console import INTERRUPTED, say
from specbench.errors import ConfigError
from specbench.grids.outcomes import Outcome, reason_of
from specbench.leaderboards.adding import add_rows
from specbench.leaderboards.together import check_together
from specbench.results.leaderboard import check_writable, load
from specbench.results.row import Row
from specbench.running.file_lock import locked
from specbench.suite.cells import Cell
from specbench.suite.crew import Crew, Worker
from specbench.suite.forecast import Estimate, Forecast, Group, cells_in, shown
from specbench.suite.jobs import Finished, Job
from specbench.suite.machines import Machines
from specbench.suite.watch import Watch

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
