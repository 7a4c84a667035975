"""The leaderboard file: how its rows are read, each checked, and written."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specbench import bounded
from specbench.errors import ConfigError
from specbench.files import check_place, write_atomically
from specbench.results.board_format import DIGEST, FORMAT, digest_of, sealed
from specbench.results.row import Row


def load(path: Path | str) -> list[Row]:
    """The rows of a leaderboard file. Raises ConfigError for anything else than a whole file of this format."""
    path = Path(path)
    content = bounded.read_json(path, _REMEDY)
    if (
        not isinstance(content, dict)
        or not isinstance(content.get("rows"), list)
        or content.keys() != {"format", "rows"}
    ):
        raise ConfigError(f'{path}: not a leaderboard: expected {{"format": {FORMAT}, "rows": […]}}; {_REMEDY}')
    _check_format(path, "format", content["format"])
    rows = [_row(path, number, row) for number, row in enumerate(content["rows"])]
    _check_each_once(path, rows)
    return rows


def write(path: Path | str, rows: Sequence[Row]) -> None:
    """Replace the file by these rows, in one step: a reader or a crash sees the old file or the new one."""
    path = Path(path).resolve()  # through a link to the file itself
    content = {"format": FORMAT, "rows": [sealed(row.model_dump(mode="json")) for row in rows]}
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        write_atomically(path, text)
    except OSError as error:
        raise not_written(path, error) from error


def check_writable(path: Path | str) -> None:
    """Raise ConfigError where `write` could not replace the file: asked before anything is measured."""
    try:
        path = Path(path).resolve()
        check_place(path)
    except OSError as error:
        problem = f"cannot write the leaderboard: {error.strerror or error}"
        raise ConfigError(f"{path}: {problem}; nothing was measured: name another file") from error


_REMEDY = "restore it from a copy, or move it away and run again: the rows are recomputed from the records"


def _check_format(path: Path, key: str, found: Any) -> None:
    if type(found) is not int or found != FORMAT:
        raise ConfigError(
            f"{path}: {key} = {found!r:.60}, but this version of specbench reads format {FORMAT} only: read the file "
            "with the version that wrote it, or measure its rows again"
        )


def _row(path: Path, number: int, content: Any) -> Row:
    place = f"rows.{number}"
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: {place} = {content!r:.60}: Input should be a row; {_REMEDY}")
    _check_format(path, f"{place}.format", content.get("format"))
    absent = [name for name in Row.model_fields if name not in content]
    if absent:
        raise ConfigError(f"{path}: {place}.{absent[0]}: every row has this key, and this one lacks it; {_REMEDY}")
    try:
        row = Row.model_validate({name: value for name, value in content.items() if name != DIGEST})
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, (place, *problem["loc"])))
        raise ConfigError(f"{path}: {key} = {problem['input']!r:.60}: {problem['msg']}; {_REMEDY}") from error
    if content.get(DIGEST) != digest_of(content):
        raise ConfigError(
            f"{path}: {place} ({row.place}): {DIGEST} = {content.get(DIGEST)!r:.60} is not that of its content "
            f"({digest_of(content)}): the row was edited by hand; restore the file from a copy, or take the row out "
            f"and add its run again (specbench leaderboard add RUN --to {path})"
        )
    return row


def _check_each_once(path: Path, rows: Sequence[Row]) -> None:
    """Raise ConfigError where two rows are of the same result: which of them holds, nothing tells."""
    seen: dict[str, int] = {}
    for number, row in enumerate(rows):
        first = seen.setdefault(row.key, number)
        if first != number:
            raise ConfigError(
                f"{path}: rows.{number} ({row.place}) is the same configuration as rows.{first}, created "
                f"{row.created} and {rows[first].created}: take one of the two out"
            )


def not_written(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path}: cannot write the leaderboard: {error.strerror or error}; the file is as it was and the records are "
        "kept: run the same command again once it can be written, or name another file"
    )
