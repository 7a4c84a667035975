"""What became of the cells of a board or a suite."""

from dataclasses import dataclass
from pathlib import Path

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
