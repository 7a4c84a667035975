"""The leaderboard file: rows of results with everything that is needed to compare or repeat them."""

import errno
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, field_validator

from specbench.errors import ConfigError
from specbench.fairness.numbers import Family, GroupNumbers
from specbench.files import temporary_path, write_atomically
from specbench.results.board_format import DIGEST, FORMAT, HISTORY, digest_of, sealed, upgraded
from specbench.results.bootstrap import Intervals, Metric
from specbench.running.file_lock import locked

# Everything else says which result it is.
RESULT_FIELDS = frozenset(
    {"metrics", "quality", "signatures", "verdict", "evidence", "fairness", "intervals", "created", "command", "run"}
)


class Sampling(BaseModel):
    """How both models' logits become probabilities; temperature 0 is greedy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: FiniteFloat
    top_k: int | None = None
    top_p: FiniteFloat | None = None


class Evidence(BaseModel):
    """What an audit's verdict rests on: prompts of greedy outputs, draws of up to five tokens and their p-value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    subsets: tuple[str, ...]
    num_prompts: int | None
    num_draws: int | None
    temperature: FiniteFloat | None  # of the draws
    p_value: FiniteFloat | None


class Row(BaseModel):
    """One method on one subset (or on "all"), paired to AR in the same process. Times in seconds, rates in tokens/s."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[3] = FORMAT
    task: str  # name@version:digest
    subset: str
    language: str | None
    method: str  # name@version:digest
    num_draft_tokens: int
    options: dict[str, Any]
    target: str
    target_revision: str | None
    drafter: str | None
    drafter_revision: str | None
    sampling: Sampling
    dtype: str
    device: str
    attention: str
    versions: dict[str, str | None]
    commit: str | None
    command: str
    data_source: Literal["hub", "local", "sample"]
    data_location: str
    data_revision: str | None
    chat: bool | str
    seed: int
    n: int = Field(ge=0)  # examples
    repeats: int = Field(ge=1)
    created: str
    run: str | None = None  # the folder of the records, from the file's folder; null: the file's folder, or unknown
    lossless: bool  # what the rule, or the author of external code, claims
    verdict: str = "not audited"  # what the outputs say: specbench.audit.records
    evidence: Evidence | None = None  # of an audit that gave the verdict; null where the row's own outputs did
    quality: str | None = None  # the metric that stands for it; null where nothing is scored, or by several
    signatures: dict[str, str] = Field(default_factory=dict)  # how metrics were computed, where a name is not enough
    intervals: Intervals | None = None  # how those of the metrics were computed; null in rows that do not say it
    fairness: GroupNumbers | Family | None = None  # of `specbench fairness`: of a subset, or in "all" of all subsets
    metrics: dict[str, Metric]

    @field_validator("options")
    @classmethod
    def _infinity_as_word(cls, options: dict[str, Any]) -> dict[str, Any]:
        return {name: writable(value) for name, value in options.items()}  # JSON has no infinity; a threshold may be

    @property
    def place(self) -> str:
        """Task, subset and method, by which a message names a row."""
        return f"{self.task.partition(':')[0]} {self.subset} {self.method.partition(':')[0]}"

    @property
    def key(self) -> str:
        """What identifies the result: every field but the metrics, the date and the command line; and the judge."""
        judge = {"judge": self.signatures["judge_score"]} if "judge_score" in self.signatures else {}
        return json.dumps(self.model_dump(mode="json", exclude=set(RESULT_FIELDS)) | judge, sort_keys=True)


def load(path: Path | str) -> list[Row]:
    """The rows of a leaderboard file. Raises ConfigError for anything else than a whole file of this format."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_a_number)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the leaderboard: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a leaderboard (broken JSON: {error}); {_REMEDY}") from error
    if (
        not isinstance(content, dict)
        or not isinstance(content.get("rows"), list)
        or content.keys() != {"format", "rows"}
    ):
        raise ConfigError(f'{path}: not a leaderboard: expected {{"format": {FORMAT}, "rows": […]}}; {_REMEDY}')
    if content["format"] not in tuple(HISTORY):
        raise ConfigError(
            f"{path}: format = {content['format']!r}, but this version of specbench reads formats "
            f"{', '.join(map(str, HISTORY))}; use the version that wrote the file or choose another file"
        )
    rows = [_row(path, number, row, content["format"]) for number, row in enumerate(content["rows"])]
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
        raise _not_written(path, error) from error


def merge(
    path: Path | str, rows: Sequence[Row], check: Callable[[Sequence[Row]], None] = lambda rows: None
) -> list[Row]:
    """Put rows into the file: a row with the same key is replaced, and one without a judge by the same with one; all
    others are kept. Returns all rows. `check` is asked with the rows that the file holds before anything is written,
    and may raise."""
    path = Path(path).resolve()
    with ExitStack() as held:
        try:  # the lock is a file beside it: the file itself is replaced, so a lock on it would guard nothing
            held.enter_context(locked(path.with_name(f".{path.name}.lock"), wait=True))
        except OSError as error:
            raise _not_written(path, error) from error
        merged = {row.key: row for row in load(path)} if path.exists() else {}
        check(list(merged.values()))
        for row in rows:
            unjudged = row.model_copy(update={"signatures": {}}).key
            if unjudged != row.key:
                merged.pop(unjudged, None)
            merged[row.key] = row
        write(path, list(merged.values()))
    return list(merged.values())


def set_verdicts(path: Path | str, verdict_of: Callable[[Row], tuple[str, Evidence] | None]) -> int:
    """Give rows of the file another verdict, with its evidence, where `verdict_of` has one for them; returns how many.
    A later run of the same configuration replaces the row, and its verdict."""
    names = ("verdict", "evidence")

    def changed(row: Row) -> dict[str, Any] | None:
        found = verdict_of(row)
        return dict(zip(names, found, strict=True)) if found else None

    return _update(path, changed)


def set_fairness(path: Path | str, fairness_of: Callable[[Row], GroupNumbers | Family | None]) -> int:
    """Give rows of the file their `fairness`, where `fairness_of` has some for them; returns how many. A later run of
    the same configuration replaces the row without them."""

    def changed(row: Row) -> dict[str, Any] | None:
        found = fairness_of(row)
        return None if found is None else {"fairness": found}

    return _update(path, changed)


def _update(path: Path | str, changed: Callable[[Row], dict[str, Any] | None]) -> int:
    """Change fields of the rows for which `changed` gives some; returns how many."""
    path = Path(path).resolve()
    with ExitStack() as held:
        try:
            held.enter_context(locked(path.with_name(f".{path.name}.lock"), wait=True))
        except OSError as error:
            raise _not_written(path, error) from error
        rows = [(row, changed(row)) for row in load(path)]
        write(path, [row.model_copy(update=fields) if fields else row for row, fields in rows])
    return sum(fields is not None for _, fields in rows)


def check_writable(path: Path | str) -> None:
    """Raise ConfigError where `write` could not replace the file: asked before anything is measured."""
    try:
        path = Path(path).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        temporary_path(path).open("w").close()
        temporary_path(path).unlink()
    except OSError as error:
        problem = f"cannot write the leaderboard: {error.strerror or error}"
        raise ConfigError(f"{path}: {problem}; nothing was measured: name another file") from error


_REMEDY = "restore it from a copy, or move it away and run again: the rows are recomputed from the records"


def _row(path: Path, number: int, content: Any, version: int) -> Row:
    place = f"rows.{number}"
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: {place} = {content!r:.60}: Input should be a row; {_REMEDY}")
    fields = upgraded({name: value for name, value in content.items() if version < 3 or name != DIGEST}, version)
    try:
        row = Row.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, (place, *problem["loc"])))
        raise ConfigError(f"{path}: {key} = {problem['input']!r:.60}: {problem['msg']}; {_REMEDY}") from error
    if version >= 3 and content.get(DIGEST) != digest_of(content):
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


def writable(value: Any) -> Any:
    """A value of a row as JSON can hold it: an infinite number as a word."""
    if isinstance(value, Mapping):
        return {name: writable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [writable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _not_written(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path}: cannot write the leaderboard: {error.strerror or error}; the file is as it was and the records are "
        "kept: run the same command again once it can be written, or name another file"
    )
