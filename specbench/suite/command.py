"""One `specbench suite`: its workers, here or in a cluster, and what is printed in the end."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from specbench.console import PlainConsole, say
from specbench.errors import ConfigError
from specbench.grids.measurement import Asked
from specbench.models.loading import choose_device
from specbench.resources import EMBEDDED
from specbench.suite.cells import folder_of
from specbench.suite.crew import Worker
from specbench.suite.forecast import Forecast, cells_in
from specbench.suite.jobs import Opening
from specbench.suite.process import MeasuringProcess
from specbench.suite.run import Collected, one_at_a_time, run_suite, saying_how_to_go_on
from specbench.suite.tables import rows_table


def measure(
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
    from specbench.suite.cluster import ray_workers

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
