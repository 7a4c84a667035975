"""The board of all measured cells, from their unpacked archives."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.results.leaderboard import ROWS, write
from specbench.results.leaderboard_files import add_runs
from specbench.results.row import LATER_FIELDS
from specbench.results.runs import RecordedRun

from .archive import unpack
from .cells import DRAFTING, Cell


@dataclass(frozen=True)
class Archives:
    """`board`: leaderboards/real.json. Beside it are a folder of archives, and below that the unpacked ones, which
    Git ignores."""

    board: Path

    def file(self, name: str) -> Path:
        return self.board.with_suffix("") / f"{name}.tar.xz"

    def archive(self, cell: Cell) -> Path:
        return self.file(cell.name)

    def unpacked(self, cell: Cell) -> Path:
        return self.board.with_suffix("") / cell.name

    def measured(self, cells: Sequence[Cell]) -> list[Cell]:
        """Returns the cells that have an archive, and unpacks them."""
        found = [cell for cell in cells if self.archive(cell).is_file()]
        for cell in found:
            unpack(self.archive(cell), self.unpacked(cell))
            add_later_fields(self.unpacked(cell))
        return found

    def write_board(self, measured: Sequence[Cell]) -> dict[str, str]:
        """Writes the board anew. Returns for each cell whose rows may not stand on it the reason. A row of several
        cells that one version measured, such as ar, is that of the cell with most methods, beside which it says most;
        of those on the page of real pairs if there is one."""
        fresh = self.board.with_name(f".new-{self.board.name}")
        fresh.unlink(missing_ok=True)
        refused = {}
        for cell in sorted(measured, key=lambda cell: (cell.group != DRAFTING, len(cell.methods))):
            try:
                add_runs([self.unpacked(cell)], fresh)
            except ConfigError as error:
                refused[cell.name] = str(error)
        if not fresh.exists():
            write(fresh, [])
        fresh.replace(self.board)
        fresh.with_name(f".{fresh.name}.lock").unlink(missing_ok=True)
        return refused


def add_later_fields(folder: Path) -> None:
    """Writes into the rows of a run what its records tell and only later versions of specbench compute."""
    run = RecordedRun(folder)
    rows = []
    for row in run.rows:
        own = run.recompute_row(row)
        empty = {name for name in LATER_FIELDS if not getattr(row, name)}
        rows.append(row.model_copy(update={name: getattr(own, name) for name in empty}))
    if rows != run.rows:
        write(folder / ROWS, rows)
