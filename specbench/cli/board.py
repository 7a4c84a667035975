"""`specbench board`: boards are tables of tasks and methods, with the published figures of a paper beside ours."""

import json
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import arguments
from specbench.cli.arguments import flag, path, split
from specbench.core.console import stderr, stdout

board = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@board.callback()
def about() -> None:
    """Boards: what a leaderboard holds, how it is measured, and the published figures beside ours."""


Name = Annotated[str, typer.Argument(help="Name of a board, or its YAML file.")]
Runs = Annotated[str | None, typer.Option(help="Folder of runs, with boards in its folder `boards`; runs when absent.")]


@board.command("list")
def list_() -> None:
    """List the boards."""
    from specbench.publish.boards.tables import boards_table

    stdout.print(boards_table())


@board.command()
def show(
    name: Name,
    pair: Annotated[str | None, typer.Option(help="Pair of the board; all that are measured when absent.")] = None,
    runs: Runs = None,
    as_json: Annotated[bool, flag("--json", help="Print the published figures with ours as JSON.")] = False,
) -> None:
    """Print what is measured of a board, and its published tables with ours and the ratio beside each figure.

    Rows are those of `board run`, and those of a .json beside the board's YAML.

    Lines below the table tell which were measured with other options or versions than the board asks for now.
    """
    from rich.text import Text

    from specbench.publish.boards.comparison import as_records
    from specbench.publish.boards.measured import measured_pairs
    from specbench.publish.boards.published import published_tables
    from specbench.publish.boards.tables import nothing_measured, own_table

    found = measured_pairs(name, pair, path("--runs", runs))
    if as_json:
        stdout.out(json.dumps([each for one in found for each in as_records(one)], ensure_ascii=False, indent=2))
        return
    for measured in found:
        if any(measured.rows.values()):
            stdout.print(own_table(measured))
        else:
            stdout.print(nothing_measured(measured, name), soft_wrap=True)
        for part in published_tables(measured):
            stdout.print(part, soft_wrap=isinstance(part, Text))


@board.command()
def run(
    name: Name,
    pair: Annotated[str, typer.Option(help="Pair of the board.")],
    only: Annotated[str | None, typer.Option(help="Runs of the board, separated by commas; all when absent.")] = None,
    limit: arguments.Limit = None,
    data: arguments.Data = None,
    device: arguments.Device = "auto",
    engine: arguments.Engine = "auto",
    threads: arguments.Threads = None,
    allow_code_execution: Annotated[
        bool, flag("--allow-code-execution", help="Run the programs that the models write, to score them.")
    ] = False,
    runs: Runs = None,
    leaderboard: Annotated[str | None, typer.Option(help="Leaderboard JSON that the rows are merged into.")] = None,
) -> None:
    """Measure what a board misses, each run in a folder of its own; exit code 1 where one fails."""
    from specbench.publish.boards.catalogue import load_board
    from specbench.publish.boards.cells import cells_of, chosen
    from specbench.publish.boards.run import run_cells
    from specbench.publish.boards.tables import outcomes_table
    from specbench.publish.measurement import Asked
    from specbench.tasks.sandbox import run as permission

    permission.allow(allow_code_execution)
    asked = Asked(path("--runs", runs) or Path("runs"), limit, data, device, threads, allow_code_execution, engine)
    cells = chosen(cells_of(load_board(name), pair, asked), None if only is None else split(only))
    outcomes = run_cells(cells, path("--leaderboard", leaderboard), stderr)
    stdout.print(outcomes_table(f"{cells[0].board.name} · {pair}", outcomes))
    if any(outcome.failure is not None for outcome in outcomes):
        raise typer.Exit(1)
