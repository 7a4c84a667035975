"""Rows from local files: jsonl, json, csv, tsv, parquet and txt (a text a line), plain or gzipped."""

import csv
import gzip
import io
import json
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

from specbench.data.remote import RemoteFile
from specbench.errors import ConfigError

Row = dict[str, Any]
File = Path | zipfile.Path | RemoteFile
FORMATS = ("jsonl", "json", "csv", "tsv", "parquet", "txt")
SUFFIXES = tuple(f".{form}{gz}" for form in FORMATS for gz in ("", ".gz"))


def find_files(folder: Path, stems: Sequence[str]) -> list[Path]:
    """The files of the first stem (a wildcard pattern) and the first format that match any. Empty when none does.

    Raises ConfigError for a stem that no file can have.
    """
    for stem in stems:
        for suffix in SUFFIXES:
            try:
                files = sorted(path for path in folder.glob(stem + suffix) if path.is_file())
            except (ValueError, OSError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(f"local.files: '{stem[:60]}' cannot be looked for: {reason}: correct it") from error
            if files:
                return files
    return []


def read_rows(path: File, *, headerless: Sequence[str] = (), columns: Iterable[str] = ()) -> Iterator[Row]:
    """The rows of a file, lazily. A csv or tsv whose first row names none of `columns` and `headerless` has no header
    and takes its columns from `headerless`, if there are any.

    Raises ConfigError naming the file and the line (or row) when the file cannot be read or is not what its name says.
    """
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
    if suffix is None:
        raise ConfigError(f"{path}: not a kind of file that can be read: use {', '.join(SUFFIXES[::2])} (also .gz)")
    form = suffix.removesuffix(".gz").removeprefix(".")
    try:
        if form == "parquet" and isinstance(path, Path):
            yield from _parquet_rows(path)
            return
        with _open_text(path) as file:
            if form == "jsonl":
                yield from _jsonl_rows(path, file)
            elif form == "json":
                yield from _json_rows(path, file)
            elif form == "txt":
                yield from ({"text": text} for line in file if (text := line.rstrip("\r\n")).strip())
            else:
                yield from _table_rows(path, file, form, headerless, columns)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {reason}: check the file") from error


def _open_text(path: File) -> IO[str]:
    if path.suffix == ".gz" and isinstance(path, Path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    opened: IO[str] = path.open("r", encoding="utf-8-sig", newline="")
    return opened


def _parquet_rows(path: Path) -> Iterator[Row]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        source = io.BytesIO(gzip.decompress(path.read_bytes())) if path.suffix == ".gz" else path
        for batch in ParquetFile(source).iter_batches(batch_size=256):
            yield from batch.to_pylist()
    except ArrowException as error:
        raise ConfigError(f"{path}: not a parquet file: {error}: check the file") from error


def _jsonl_rows(path: File, file: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _mapping(_json(path, line.rstrip(), number), f"{path}, line {number}")


def _json_rows(path: File, file: IO[str]) -> Iterator[Row]:
    first, second = file.readline(), file.readline()
    if _is_row(first) and _is_row(second):  # one row a line: many a .json on the hub is
        yield from _jsonl_rows(path, chain([first, second], file))
        return
    data = _json(path, first + second + file.read(), 1)
    rows = data.get("data") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise ConfigError(f'{path}: holds no rows: write a list of rows, or {{"data": [rows]}}')
    for number, row in enumerate(rows, start=1):
        yield _mapping(row, f"{path}, row {number}")


def _is_row(line: str) -> bool:
    """Whether a line is a row by itself."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _json(path: File, text: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise ConfigError(f"{path}, line {line}: not valid JSON: {error.msg}: correct it") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise ConfigError(f"{path}, from line {first_line}: not JSON that can be read: {error}: correct it") from error


def _mapping(row: Any, place: str) -> Row:
    if not isinstance(row, dict):
        raise ConfigError(f"{place}: a row must be a JSON object such as {{'question': …}}, not {type(row).__name__}")
    return row


def _table_rows(
    path: File, file: IO[str], form: str, headerless: Sequence[str], columns: Iterable[str]
) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    # Tab-separated files hold quotation marks as they are; a comma needs quoting.
    table = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if form == "tsv" else csv.reader(file, strict=True)
    names: list[str] = []
    try:
        for cells in table:
            if not cells:
                continue
            if not names:
                names = list(headerless)
                if not headerless or {*columns, *headerless} & set(cells):
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
