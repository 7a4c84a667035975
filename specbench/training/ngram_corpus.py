"""The documents of a corpus: lines of text files, or one column of JSON lines."""

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, cast

import numpy as np

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.models.ngram import Array

TEXT_FORMATS = (".txt", ".jsonl")


class CorpusFiles:
    """The documents of some files in order, read line by line. `num_bytes` is the size of the files, `num_bytes_read`
    how much of it has been read. Raises ConfigError at once for a file that is not there or of another kind."""

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
        """The documents, without empty ones. Raises ConfigError naming file and line."""
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
    """What a line has in the place of the column, and what to do."""
    if not isinstance(row, dict):
        return '(it is no JSON object): write {"COLUMN": "…"} on each line'
    names = list(row)
    return f"(columns: {', '.join(names)}): give --set data.column={names[0] if len(names) == 1 else 'NAME'}"


def text_format(path: Path) -> str:
    """The suffix of a file without .gz."""
    return Path(path.name.removesuffix(".gz")).suffix


MIN_BUFFER = 4096  # entries of a run that are read at once, at least


class SortedRuns:
    """Runs of (key, count), each sorted by key and without duplicates, one after the other in two files."""

    def __init__(self, folder: Path) -> None:
        self.keys_path, self.counts_path = folder / "run-keys", folder / "run-counts"
        self.indices_path = folder / "run-indices"
        self.ends: list[int] = [0]
        for path in (self.keys_path, self.counts_path, self.indices_path):
            path.write_bytes(b"")

    def add(self, keys: Array, inverse: bool) -> Array:
        """Append the run of some keys [n]. Returns the place of each key in its run, [n] (empty unless `inverse`)."""
        order = np.argsort(keys) if inverse else None
        ordered = np.sort(keys) if order is None else keys[order]
        starts = first_of_each(ordered)
        append(self.keys_path, ordered[starts])
        append(self.counts_path, np.diff(starts, append=len(ordered)).astype(np.uint32))
        self.ends.append(self.ends[-1] + len(starts))
        places = np.empty(len(keys) if inverse else 0, dtype=np.int32)
        if order is not None:
            places[order] = ranks_of_groups(starts, len(keys))
        return places

    def merge(self, num_buffered: int, index: bool) -> Iterator[tuple[Array, Array]]:
        """All keys in order with their counts, in pieces of about `num_buffered` entries. With `index` the rank of
        every entry's key among all keys is kept for `indices_of`."""
        num_runs = len(self.ends) - 1
        size = max(MIN_BUFFER, num_buffered // max(1, num_runs))
        buffers = [RunBuffer(self, number, size) for number in range(num_runs)]
        num_merged = 0
        with self.indices_path.open("r+b") as indices_file:
            while buffers := [buffer for buffer in buffers if buffer.fill()]:
                cut = min(buffer.keys[-1] for buffer in buffers)
                parts = [buffer.take(cut) for buffer in buffers]
                keys = np.concatenate([keys for _, keys, _ in parts])
                counts = np.concatenate([counts for _, _, counts in parts]).astype(np.int64)
                order = np.argsort(keys, kind="stable")
                ordered = keys[order]
                starts = first_of_each(ordered)
                if index:
                    ranks = np.empty(len(keys), dtype=np.int64)
                    ranks[order] = num_merged + ranks_of_groups(starts, len(keys))
                    for place, taken, _ in parts:
                        indices_file.seek(place * 8)
                        indices_file.write(ranks[: len(taken)].tobytes())
                        ranks = ranks[len(taken) :]
                num_merged += len(starts)
                yield ordered[starts], np.add.reduceat(counts[order], starts)

    def indices_of(self, number: int) -> Array:
        """The rank of each key of a run among all keys; after a `merge` with `index`."""
        start, end = self.ends[number : number + 2]
        return np.fromfile(self.indices_path, dtype=np.int64, count=end - start, offset=start * 8)


class RunBuffer:
    """The entries of one run that are in memory."""

    def __init__(self, runs: SortedRuns, number: int, size: int) -> None:
        self.runs, self.size = runs, size
        self.place, self.end = runs.ends[number : number + 2]
        self.keys = np.empty(0, dtype=np.int64)
        self.counts = np.empty(0, dtype=np.uint32)

    def fill(self) -> bool:
        """Read on when little is left. Returns whether anything is."""
        start = self.place + len(self.keys)
        missing = min(self.size - len(self.keys), self.end - start)
        if missing > 0 and len(self.keys) <= self.size // 2:
            keys = np.fromfile(self.runs.keys_path, dtype=np.int64, count=missing, offset=start * 8)
            counts = np.fromfile(self.runs.counts_path, dtype=np.uint32, count=missing, offset=start * 4)
            self.keys, self.counts = np.concatenate([self.keys, keys]), np.concatenate([self.counts, counts])
        return len(self.keys) > 0

    def take(self, cut: int) -> tuple[int, Array, Array]:
        """The entries up to and with a key: where they are in the files, keys and counts."""
        count = int(np.searchsorted(self.keys, cut, side="right"))
        taken = (self.place, self.keys[:count], self.counts[:count])
        self.keys, self.counts, self.place = self.keys[count:], self.counts[count:], self.place + count
        return taken


def first_of_each(ordered: Array) -> Array:
    """Where a sorted array [n] changes: the place of the first of each value."""
    if len(ordered) == 0:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])


def ranks_of_groups(starts: Array, length: int) -> Array:
    """The number of the group that each of `length` places is in, groups beginning at `starts`."""
    return np.repeat(np.arange(len(starts)), np.diff(starts, append=length))


def append(path: Path, array: Array) -> None:
    """Write an array to the end of a file."""
    with path.open("ab") as file:
        file.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
