"""The log of a training: a CSV file that grows pass by pass and is cut back to the checkpoint when it is resumed."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError

FIRST_COLUMNS = ("timestamp", "step", "pass")


class Log:
    """A line for each row of a pass. Before the objective's columns come timestamp (UTC), step (an update of the
    weights) and pass (within its step); both are counted from 1."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.columns = (*FIRST_COLUMNS, *columns)

    def cut_back(self, num_bytes: int) -> None:
        """Drop what was written after the checkpoint; 0 starts anew. Raises ConfigError for a log that lost lines."""
        if num_bytes == 0:
            self.path.write_text(self._lines([self.columns]), encoding="utf-8")
            return
        found = self.path.stat().st_size if self.path.exists() else 0
        if found < num_bytes:
            raise ConfigError(
                f"{self.path}: {found} bytes where the checkpoint knows {num_bytes}: restore the log, or delete "
                f"{self.path.parent} to begin anew"
            )
        os.truncate(self.path, num_bytes)

    def append(self, step: int, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of a pass; a column that a row lacks is empty."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        cells = [[now, step, number, *(row.get(name) for name in self.columns[len(FIRST_COLUMNS) :])] for row in rows]
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._lines(cells))

    def sync(self) -> int:
        """Bring what is written to the disk; the size in bytes."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def _lines(self, rows: Sequence[Sequence[Any]]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()
