"""`specbench board run`: measures the cells of a pair that are missing; one that fails does not stop the others."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from specbench.analysis.fairness import FairnessRequest, add_to, fairness_answer
from specbench.core.console import say
from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.publish.boards.cells import Cell
from specbench.publish.measurement import Outcome, reason_of
from specbench.results.adding import add_rows
from specbench.results.execute import execute
from specbench.results.machine import check_takes


def run_cells(cells: Sequence[Cell], leaderboard: Path | None, console: Console) -> list[Outcome]:
    """Measure what is missing, one cell after the other; `leaderboard`: a file that gets the rows of each at once.

    Raises ConfigError for a file that cannot take them, before anything is measured.
    """
    if leaderboard is not None:
        for cell in cells[:1]:  # of all cells the machine is the same
            set_threads(cell.asked.threads, (cell.pair.target or EMBEDDED).startswith(EMBEDDED))
            check_takes(leaderboard, cell.asked.device)
    outcomes = []
    for number, cell in enumerate(cells, start=1):
        say(console, f"[{number}/{len(cells)}] {' · '.join(cell.place)}: {', '.join(cell.methods)}")
        outcomes.append(_outcome(cell, leaderboard, console))
        if outcomes[-1].failure is not None:
            say(console, f"failed: {outcomes[-1].failure}")
    return outcomes


def _outcome(cell: Cell, leaderboard: Path | None, console: Console) -> Outcome:
    """Whatever goes wrong in a cell is its own failure: a model that does not fit or data that are not there are no
    reason to leave the others out."""
    try:
        was_measured = cell.is_measured(cell.measurement.rows())
        if was_measured:
            say(console, f"measured already: {cell.folder}")
        else:
            execute(cell.measurement.request(), console)
            if cell.run.fairness:
                _add_fairness(cell, console)
        if leaderboard is not None:
            add_rows(leaderboard, cell.measurement.rows(), cell.folder)
    except Exception as error:
        return Outcome(cell.run_name, cell.folder, False, reason_of(error))
    return Outcome(cell.run_name, cell.folder, was_measured, None)


def _add_fairness(cell: Cell, console: Console) -> None:
    """The rows of the folder get what `specbench fairness` says of the run, the languages of free texts left out."""
    request = FairnessRequest(
        runs=[str(cell.folder)], before=None, after=None, drafters=(), reference="continuation", samples=0,
        data=cell.asked.data, seed=cell.board.conditions.seed, dtype=cell.board.conditions.dtype,
        device=cell.asked.device, threads=cell.asked.threads,
    )  # fmt: skip
    num_rows = add_to(cell.folder / "leaderboard.json", fairness_answer(request))
    say(console, f"fairness: {num_rows} rows")
