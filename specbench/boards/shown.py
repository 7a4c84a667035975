"""What `specbench board show` reads: the board, and the rows of one pair or of all that are measured."""

from pathlib import Path

from specbench.boards.catalogue import board_path, load_board
from specbench.boards.measured import Measured, measured
from specbench.errors import ConfigError


def measured_pairs(name: str, pair: str | None, folder: Path | None) -> list[Measured]:
    """The rows below `folder`, completed by those of the leaderboard that is committed beside the board's file. Without
    a pair: all that have rows, or the first one where none has."""
    board = load_board(name)
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--runs {folder}: no such folder: give the one that `specbench board run` measured into")
    committed = board_path(name).with_suffix(".json")
    pairs = [pair] if pair is not None else list(board.pairs)
    found = [measured(board, each, folder or Path("runs"), committed) for each in pairs]
    return [each for each in found if any(each.rows.values())] or found[:1]
