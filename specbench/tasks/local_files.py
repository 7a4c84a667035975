"""Rows of local files: jsonl, json, csv, tsv, parquet and txt (one text per line), plain or gzipped."""

import csv
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any

from specbench.core import bounded
from specbench.core.errors import ConfigError, nearest


class RemoteFile(PurePosixPath):
    """A file on the hub: datasets/OWNER/NAME@COMMIT/FILE."""

    def open_bytes(self) -> IO[bytes]:
        """Opens the file for random access. Raises what the hub's client raises."""
        import huggingface_hub

        opened: IO[bytes] = huggingface_hub.HfFileSystem().open(str(self), "rb")
        return opened


Row = dict[str, Any]
File = Path | zipfile.Path | RemoteFile
FORMATS = ("jsonl", "json", "csv", "tsv", "parquet", "txt")
SUFFIXES = tuple(f".{form}{gz}" for form in FORMATS for gz in ("", ".gz"))


def find_files(folder: Path, stems: Sequence[str]) -> list[Path]:
    """Returns the files that match the first stem (a wildcard pattern) and the first format with any match; empty if
    there is no match. Raises ConfigError for a stem that no file can have."""
    for stem in stems:
        for suffix in SUFFIXES:
            try:
                files = sorted(path for path in folder.glob(stem + suffix) if path.is_file())
            except (ValueError, OSError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(f"local.files: cannot search for '{stem[:60]}': {reason}: correct it") from error
            if files:
                return files
    return []


def read_rows(path: File, *, column_names: Sequence[str] = (), max_lines: float | None = None) -> Iterator[Row]:
    """Yields the rows of a file. `column_names`: the columns of a csv or tsv without a header; if they are given, the
    first row is a header only if it names one of them. Raises ConfigError naming the file and the line (or row) if the
    file cannot be read, has another format, or has more than `max_lines` lines (MAX_LINES)."""
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
    if suffix is None:
        raise ConfigError(f"{path}: unsupported file type: use {', '.join(SUFFIXES[::2])} (also .gz)")
    form = suffix.removesuffix(".gz").removeprefix(".")
    try:
        if form == "parquet" and isinstance(path, Path):
            yield from _parquet_rows(path)
            return
        with _open_text(path) as file:
            lines = bounded.lines(file, path, _num_packed_bytes(path), max_lines)
            if form == "jsonl":
                yield from _jsonl_rows(path, lines)
            elif form == "json":
                yield from _json_rows(path, lines)
            elif form == "txt":
                yield from ({"text": text} for line in lines if (text := line.rstrip("\r\n")).strip())
            else:
                yield from _table_rows(path, lines, form, column_names)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {reason}: check the file") from error


def _open_text(path: File) -> IO[str]:
    if isinstance(path, RemoteFile):
        raw = path.open_bytes()
        return io.TextIOWrapper(gzip.open(raw) if path.suffix == ".gz" else raw, encoding="utf-8-sig", newline="")
    if isinstance(path, Path) and path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    opened: IO[str] = path.open("r", encoding="utf-8-sig", newline="")
    return opened


def _num_packed_bytes(path: File) -> int | None:
    if isinstance(path, zipfile.Path):
        return path.root.getinfo(path.at).compress_size
    return path.stat().st_size if isinstance(path, Path) and path.suffix == ".gz" else None


def _parquet_rows(path: Path) -> Iterator[Row]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    most = bounded.expanded_bound(path.stat().st_size)
    source: Path | io.BytesIO = path
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                source = io.BytesIO(packed.read(most + 1))
            if len(source.getbuffer()) > most:
                raise bounded.too_large(path)
        file = ParquetFile(source)
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        sizes = [group.column(index).total_uncompressed_size for group in groups for index in range(group.num_columns)]
        if sum(sizes) > most:
            raise bounded.too_large(path)
        # A cell may be as large as its column, and a dictionary may repeat it in every row.
        for batch in file.iter_batches(batch_size=max(1, min(256, bounded.MAX_BYTES // max(sizes, default=1)))):
            yield from batch.to_pylist()
    except ArrowException as error:
        raise ConfigError(f"{path}: not a parquet file: {error}: check the file") from error


def _jsonl_rows(path: File, lines: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            row = bounded.parse_json(line.rstrip(), path, "correct it", number, strict=False)
            yield _mapping(row, f"{path}, line {number}")


def _json_rows(path: File, lines: Iterator[str]) -> Iterator[Row]:
    first, second = next(lines, ""), next(lines, "")
    if _is_row(first) and _is_row(second):  # many .json files on the hub hold one row per line
        yield from _jsonl_rows(path, chain([first, second], lines))
        return
    parts, size = [], 0
    for line in chain([first, second], lines):
        parts.append(line)
        size += len(line)
        if size > bounded.MAX_BYTES:
            problem = f"exceeds the limit of {bounded.MAX_BYTES:,} characters for one value"
            raise ConfigError(f"{path}: {problem}: write one row per line (.jsonl)")
    data = bounded.parse_json("".join(parts), path, "correct it", 1, strict=False)
    rows = data.get("data") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise ConfigError(f'{path}: holds no rows: write a list of rows, or {{"data": [rows]}}')
    for number, row in enumerate(rows, start=1):
        yield _mapping(row, f"{path}, row {number}")


def _is_row(line: str) -> bool:
    try:
        return isinstance(bounded.json_value(line, strict=False), dict)
    except ValueError:
        return False


def _mapping(row: Any, place: str) -> Row:
    if not isinstance(row, dict):
        raise ConfigError(f"{place}: a row must be a JSON object such as {{'question': …}}, not {type(row).__name__}")
    return row


def _table_rows(path: File, lines: Iterable[str], form: str, column_names: Sequence[str]) -> Iterator[Row]:
    csv.field_size_limit(bounded.MAX_BYTES)
    # Tab-separated files hold quotation marks as they are; a comma needs quoting.
    table = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if form == "tsv" else csv.reader(lines, strict=True)
    )
    names: list[str] = []
    try:
        for cells in table:
            if not cells:
                continue
            if not names:
                names = list(column_names)
                if not column_names or set(column_names) & set(cells):
                    names = cells
                    continue
            if len(cells) != len(names):
                raise ConfigError(
                    f"{path}, line {table.line_num}: {len(cells)} cells where there are {len(names)} columns "
                    f"({', '.join(names)}): correct the row"
                )
            yield dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise ConfigError(f"{path}, line {table.line_num}: not valid {form}: {error}: correct it") from error


def member_rows(archive: Path | RemoteFile, member: str) -> Iterator[Row]:
    """Yields the rows of a member of a zip. Raises ConfigError if the zip cannot be read or has no such member."""
    try:
        with zipfile.ZipFile(archive if isinstance(archive, Path) else archive.open_bytes()) as opened:
            opened.filename = str(archive)
            if member not in opened.namelist():
                raise ConfigError(f"{archive}: has no file '{member}': {nearest(member, opened.namelist())}")
            yield from read_rows(zipfile.Path(opened, member))
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{archive}: not a zip that can be read: {error}: fetch it again") from error


Files = dict[str, Path]


def find_parallel(folder: Path, patterns: Mapping[str, Sequence[str]], split: str = "test") -> list[Files]:
    """Returns the aligned files, one mapping from column to file per group, sorted by name. `patterns`: of each column;
    the first is preferred. Files are aligned if the wildcards match the same texts in the names of all columns. If
    several groups are, those named after the split are taken, if any: `test.en` and `test.de`, not `train.en` and
    `train.de`."""
    found: dict[str, dict[tuple[str, ...], Path]] = {}  # by column and the texts that the wildcards match
    for column, alternatives in patterns.items():
        found[column] = {}
        for pattern in reversed(alternatives):
            expression = re.compile("(.*)".join(map(re.escape, pattern.split("*"))))
            matches = {path: expression.fullmatch(path.relative_to(folder).as_posix()) for path in folder.glob(pattern)}
            found[column] |= {
                match.groups(): path for path, match in sorted(matches.items()) if match and path.is_file()
            }
    if not found:
        return []
    common = sorted(set.intersection(*map(set, found.values())))
    common = [texts for texts in common if any(split in text for text in texts)] or common
    return [{column: files[texts] for column, files in found.items()} for texts in common]


def parallel_rows(files: Files) -> Iterator[tuple[str, Row]]:
    """Yields the rows of aligned files with their places. A line that is blank in all files is skipped. Raises
    ConfigError if the files have different numbers of lines."""
    columns = {}
    for column, path in files.items():
        try:
            lines = bounded.read_bytes(path, "divide it").decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 text: convert it") from error
        # Only a line feed ends a line: a text may hold other line separators.
        columns[column] = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    counts = {str(files[column]): len(lines) for column, lines in columns.items()}
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"{name} has {count} lines" for name, count in counts.items())
        raise ConfigError(f"local.parallel: {lengths}: aligned files need equal numbers of lines: correct them")
    first = next(iter(files.values()))
    for number, texts in enumerate(zip(*columns.values(), strict=True), start=1):
        if any(text.strip() for text in texts):
            yield f"{first}, line {number}", dict(zip(columns, texts, strict=True))
