"""What became of the cells of a board or a suite."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from specbench.boards.tables import add, plain_table
from specbench.errors import ConfigError


@dataclass(frozen=True)
class Outcome:
    """What became of a cell. `failure`: why it has no rows, in one line; None where it has."""

    name: str
    folder: Path
    was_measured: bool
    failure: str | None


def reason_of(error: Exception) -> str:
    """Why a cell failed, in one line."""
    return str(error) if isinstance(error, ConfigError) else " ".join(f"{type(error).__name__}: {error}".split())


def outcomes_table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """What became of every cell, the failures with their reasons last."""
    table = plain_table(title, "run", "", "folder or reason")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.failure is not None):
        state = "measured already" if outcome.was_measured else "measured"
        shown = (state, str(outcome.folder)) if outcome.failure is None else ("FAILED", outcome.failure)
        add(table, outcome.name, *shown)
    return table
