"""`specbench suite`."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import arguments
from specbench.cli.arguments import flag, path
from specbench.core.console import stdout


def suite(
    file: Annotated[Path, typer.Argument(help="YAML file: tasks, methods, pairs, temperatures, seeds.")],
    dry_run: Annotated[
        bool, flag("--dry-run", help="Print the cells, what is measured of them and how long the rest takes.")
    ] = False,
    ray: Annotated[
        str | None, typer.Option(help="Share the cells among the workers of a ray cluster: local, or its address.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Workers of --ray; all its GPUs when absent, or one where it has none.")
    ] = None,
    limit: arguments.Limit = None,
    data: arguments.Data = None,
    device: arguments.Device = "auto",
    threads: arguments.Threads = None,
    allow_code_execution: arguments.AllowCodeExecution = False,
    runs: Annotated[str | None, typer.Option(help="Folder of runs, with suites in `suites`; runs when absent.")] = None,
    leaderboard: Annotated[
        str | None, typer.Option(help="Leaderboard JSON of all rows; in the suite's folder when absent.")
    ] = None,
) -> None:
    """Measure a grid: every task on every pair, at every temperature, with every seed and all methods.

    Each cell is a run in a folder of its own, and the same command goes on where it was interrupted.

    A cell that fails stops no other: failures are listed at the end, with exit code 1.

    The estimated time rests on one example of every task on every pair, measured before the grid starts.

    With --ray each worker has one GPU, or --threads CPUs where there is none, and measures one cell at a time.

    A lost worker's cell goes to another one with what is recorded; the third time it has failed.

    All workers need the same device, versions and commit, and the files of the suite at the same place.
    """
    from specbench.publish.measurement import Asked
    from specbench.publish.suite.cells import cells_of, load_suite
    from specbench.publish.suite.forecast import planned
    from specbench.publish.suite.run import measure_suite, show
    from specbench.publish.suite.tables import cells_table, problems

    asked = Asked(path("--runs", runs) or Path("runs"), limit, data, device, threads, allow_code_execution)
    cells = cells_of(load_suite(file), asked)
    forecast = planned(cells)
    if dry_run:
        stdout.print(cells_table(forecast))
        for line in problems(forecast):
            stdout.print(f"would fail here: {line}", soft_wrap=True, markup=False)
        return
    collected = measure_suite(forecast, asked, ray, workers, path("--leaderboard", leaderboard))
    show(collected, forecast, stdout)
    if any(outcome.failure is not None for outcome in collected.outcomes):
        raise typer.Exit(1)
