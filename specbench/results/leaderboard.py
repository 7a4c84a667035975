"""The leaderboard file: reads, checks and writes its rows."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import check_place, locked, write_atomically, writing
from specbench.results.row import DIGEST, FORMAT, LATER_FIELDS, Evidence, Row, digest_of, with_digest
from specbench.specs.components import build


def load(path: Path | str) -> list[Row]:
    """Returns the rows of a leaderboard file. Raises ConfigError for anything but a valid file of this format."""
    rows, problems = read(Path(path))
    if problems:
        raise ConfigError(problems[0])
    return list(rows.values())


def read(path: Path) -> tuple[dict[int, Row], list[str]]:
    """Returns the valid rows of a leaderboard file by their number, and a line for each problem. Raises ConfigError for
    a file that is not a leaderboard of this format."""
    if problem := _other_kind(path):
        raise ConfigError(f"{path}: {problem}")
    content = bounded.read_json(path, _REMEDY if os.path.exists(path) else f"check the path; {_MAKES}")
    is_board = isinstance(content, dict) and content.keys() == {"format", "rows"}
    if not is_board or not isinstance(content["rows"], list):
        expected = f'expected {{"format": {FORMAT}, "rows": […]}}'
        raise ConfigError(f"{path}: not a leaderboard: {expected}; {_hint(path.parent, _REMEDY)}")
    if not _is_format(content["format"]):
        raise ConfigError(f"{path}: {_other_format('format', content['format'])}")
    rows, problems = {}, []
    for number, written in enumerate(content["rows"]):
        row = _row(path, number, written)
        if isinstance(row, Row):
            rows[number] = row
        else:
            problems += row
    problems += _repeated_rows(rows)
    return rows, [f"{path}: {problem}" for problem in problems]


def write(path: Path | str, rows: Sequence[Row]) -> None:
    """Replaces the file atomically: readers and crashes see the old file or the new one."""
    path = Path(path).resolve()  # keeps symbolic links
    content = {"format": FORMAT, "rows": [with_digest(row.model_dump(mode="json")) for row in rows]}
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with writing(path, REWRITE, KEPT):
        write_atomically(path, text)


def check_writable(path: Path | str) -> None:
    """Raises ConfigError if `write` could not replace the file. Called before anything is measured."""
    with writing(path, kept="; nothing was measured"):
        check_place(Path(path).resolve())


ROWS = "leaderboard.json"  # the file in the folder of a run or suite
_MAKES = "`specbench leaderboard add RUN --leaderboard FILE` makes a leaderboard file"


def _other_kind(path: Path) -> str | None:
    """Returns the problem of a path that is a folder, or whose suffix is not that of a leaderboard; otherwise None."""
    if os.path.isdir(path):
        return f"this is a folder, not a leaderboard file (JSON): {_hint(path, _MAKES)}"
    if path.suffix == ".jsonl":
        return f"this has JSON lines, not a leaderboard (JSON): {_hint(path.parent, _MAKES)}"
    if path.suffix in (".yaml", ".yml"):
        return "this is a YAML file, not a leaderboard (JSON): `specbench validate` checks YAML files"
    return None


def _hint(folder: Path, otherwise: str) -> str:
    """Returns the place of the rows if the folder is that of a run or suite, otherwise the text `otherwise`."""
    return f"the rows are in {folder / ROWS}" if os.path.isfile(folder / ROWS) else otherwise


_REMEDY = "restore it from a copy, or move it away and run again: the rows are recomputed from the records"


def _is_format(found: Any) -> bool:
    return type(found) is int and found == FORMAT


def _other_format(key: str, found: Any) -> str:
    return (
        f"{key} = {found!r:.60}, but this version of specbench reads format {FORMAT} only: read the file with the "
        "version that wrote it, or measure its rows again"
    )


def _row(path: Path, number: int, content: Any) -> Row | list[str]:
    place = f"rows.{number}"
    if not isinstance(content, dict):
        return [f"{place} = {content!r:.60}: Input should be a row; {_REMEDY}"]
    if not _is_format(content.get("format")):
        return [_other_format(f"{place}.format", content.get("format"))]
    absent = [name for name in Row.model_fields if name not in content and name not in LATER_FIELDS]
    if absent:
        return [f"{place}.{name}: this row lacks the key, which every row must have; {_REMEDY}" for name in absent]
    try:
        row = build(
            Row, {name: value for name, value in content.items() if name != DIGEST}, place=place, remedy=_REMEDY
        )
    except ConfigError as error:
        return [str(error), *error.others]
    if content.get(DIGEST) != digest_of(content):
        return [
            f"{place} ({row.place}): {DIGEST} = {content.get(DIGEST)!r:.60}, but its content has the digest "
            f"{digest_of(content)}: the row was edited by hand; restore the file from a copy, or remove the row and "
            f"add its run again (specbench leaderboard add RUN --leaderboard {path})"
        ]
    return row


def _repeated_rows(rows: Mapping[int, Row]) -> Iterator[str]:
    """Yields a line for each row with the same configuration as an earlier one."""
    seen: dict[str, int] = {}
    for number, row in rows.items():
        first = seen.setdefault(row.key, number)
        if first != number:
            yield (
                f"rows.{number} ({row.place}) is the same configuration as rows.{first}, created {row.created} and "
                f"{rows[first].created}: remove one of the two"
            )


KEPT = "; the file is unchanged and the records are kept"
REWRITE = "run the same command again once it can be written, or name another file"


@contextmanager
def edit_rows(path: Path | str, *, may_be_absent: bool = True) -> Iterator[list[Row]]:
    """Yields the rows of a file as a list to edit, and writes it if the block ends without an error. The file is locked
    for other processes meanwhile."""
    path = Path(path).resolve()
    with ExitStack() as stack:
        with writing(path, REWRITE, KEPT):
            # The lock is another file: the file itself is replaced, so a lock on it would guard nothing.
            stack.enter_context(locked(path.with_name(f".{path.name}.lock"), wait=True))
        rows = [] if may_be_absent and not path.exists() else load(path)
        yield rows
        write(path, rows)


def merge_rows(known: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Returns `known` updated by `rows`. A row replaces the one with the same key; a judged row also replaces the same
    row without a judge. All others are kept."""
    found = {row.key: row for row in known}
    for row in rows:
        unjudged = row.model_copy(update={"signatures": {}}).key
        if unjudged != row.key:
            found.pop(unjudged, None)
        found[row.key] = row
    return list(found.values())


def set_verdicts(path: Path | str, verdict_of: Callable[[Row], tuple[str, Evidence] | None]) -> int:
    """Sets verdict and evidence of the rows for which `verdict_of` returns them. Returns the number of these rows."""
    return set_fields(path, ("verdict", "evidence"), verdict_of)


def set_fields(path: Path | str, names: Sequence[str], values_of: Callable[[Row], tuple[Any, ...] | None]) -> int:
    """Sets fields of the rows for which `values_of` returns their values. Returns the number of these rows. A later run
    of the same configuration replaces such a row."""
    with edit_rows(path, may_be_absent=False) as rows:
        found = [(row, values_of(row)) for row in rows]
        rows[:] = [
            row if values is None else row.model_copy(update=dict(zip(names, values, strict=True)))
            for row, values in found
        ]
    return sum(values is not None for _, values in found)


DIALECT = "https://json-schema.org/draft/2020-12/schema"
ABOUT = "16 hex digits of SHA-256 over the row without this key, as JSON with sorted keys and without blanks"
METRICS = "Metrics by name; `specbench list metrics` shows their meanings and units. Intervals are 95 % intervals."


class WrittenRow(Row):
    """A row of a file, with the digest of its content."""

    digest: Annotated[str, Field(pattern="^[0-9a-f]{16}$", description=ABOUT)]


class BoardFile(BaseModel):
    """Results of specbench: one row for each method on each subset of a task, and over all subsets."""

    model_config = ConfigDict(extra="forbid", title="specbench leaderboard")

    format: Literal[1] = Field(description="Number of the format.")
    rows: list[WrittenRow]


def schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of the files that this version reads and writes."""
    made = BoardFile.model_json_schema(mode="serialization")
    rows = made["$defs"]["WrittenRow"]
    rows["properties"]["metrics"]["description"] = METRICS
    rows["required"] = sorted(rows["properties"])
    return {"$schema": DIALECT, "x-format": FORMAT, **made}
