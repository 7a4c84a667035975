"""What became of the cells of a `specbench board run`."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from specbench.boards.cells import Cell
from specbench.boards.tables import add, plain_table


@dataclass(frozen=True)
class Outcome:
    """What became of a cell. `failure`: why it has no rows, in one line; None where it has."""

    cell: Cell
    was_measured: bool
    failure: str | None


def outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    """What became of every cell of `board run`, the failures with their reasons last."""
    cell = outcomes[0].cell
    table = plain_table(f"{cell.board.name} · {cell.pair_name}", "run", "", "folder or reason")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.failure is not None):
        state = "measured already" if outcome.was_measured else "measured"
        shown = (state, str(outcome.cell.folder)) if outcome.failure is None else ("FAILED", outcome.failure)
        add(table, outcome.cell.run_name, *shown)
    return table
