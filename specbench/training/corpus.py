"""The documents of a corpus: lines of text files, or one column of JSON lines."""

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, cast

from specbench.core import bounded
from specbench.core.errors import ConfigError

TEXT_FORMATS = (".txt", ".jsonl")


class CorpusFiles:
    """The documents of some files in order, read line by line. `num_bytes`: the size of the files; `num_bytes_read`:
    how much of it has been read. Raises ConfigError for a file that does not exist or has another format."""

    def __init__(self, files: Sequence[Path], column: str) -> None:
        self.files, self.column = files, column
        self.num_bytes = self.num_bytes_read = 0
        if not files:
            raise ConfigError("--corpus: give at least one file")
        for path in files:
            if text_format(path) not in TEXT_FORMATS:
                raise ConfigError(f"--corpus {path}: give .txt (one document per line) or .jsonl, or .gz of these")
            if not path.is_file():
                raise ConfigError(f"--corpus {path}: {'is a folder: give files' if path.is_dir() else 'no such file'}")
            self.num_bytes += path.stat().st_size

    def __iter__(self) -> Iterator[str]:
        """Yields the documents without empty ones. Raises ConfigError naming file and line."""
        finished = 0
        for path in self.files:
            try:
                with path.open("rb") as raw, gzip.open(raw) if path.suffix == ".gz" else nullcontext(raw) as lines:
                    packed = path.stat().st_size if path.suffix == ".gz" else None
                    bounded_lines = bounded.lines(cast(IO[bytes], lines), path, packed, max_lines=math.inf)
                    for number, line in enumerate(bounded_lines, start=1):
                        self.num_bytes_read = finished + raw.tell()
                        if line.strip():
                            yield self._document(line, path, number)
            except (OSError, EOFError, zlib.error) as error:
                raise ConfigError(
                    f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}: check the file"
                ) from error
            finished += path.stat().st_size

    def _document(self, line: bytes, path: Path, number: int) -> str:
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}, line {number}: not UTF-8 text: convert the file") from error
        return text if text_format(path) == ".txt" else self._cell(text, path, number)

    def _cell(self, text: str, path: Path, number: int) -> str:
        row = bounded.parse_json(text, path, "correct it", number, strict=False)
        place = f"{path}, line {number}"
        if not isinstance(row, dict) or self.column not in row:
            raise ConfigError(f"{place}: has no column '{self.column}' {column_hint(row)}")
        cell = row[self.column]
        if not isinstance(cell, str):
            raise ConfigError(f"{place}: column '{self.column}' holds no text but {json.dumps(cell)[:40]}: correct it")
        return cell


def column_hint(row: object) -> str:
    """Returns what a line has instead of the column, and what to do."""
    if not isinstance(row, dict):
        return '(it is no JSON object): write {"COLUMN": "…"} on each line'
    names = list(row)
    return f"(columns: {', '.join(names)}): give --set data.column={names[0] if len(names) == 1 else 'NAME'}"


def text_format(path: Path) -> str:
    """Returns the suffix of a file without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix
