"""Folders of runs, read for their drafting methods and records."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import bounded
from specbench.errors import ConfigError, nearest
from specbench.results.cells import short
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.running.file_lock import locked
from specbench.running.record_check import check_record
from specbench.running.records import Key, Record, RecordFile, record_key

HOW = "give the folder of a finished run, as `specbench run` prints it"


def method_name(row: Row) -> str:
    """The name of a row's method, without version and digest."""
    return short(row.method).partition("@")[0]


def task_name(row: Row) -> str:
    return short(row.task).partition("@")[0]


WHOLE = ""  # the route of a method without routes


@dataclass(frozen=True)
class Drafting:
    """What a method or a route of it drafts with: kind and options of the drafter, name and revision of what it is."""

    kind: str
    options: Mapping[str, Any]
    name: str | None
    revision: str | None


@dataclass(frozen=True)
class Run:
    """A run as it was measured: `rows` of its own leaderboard, `records` by their key; `routes`: of methods with routes
    what each drafts with, as run.json has it."""

    path: Path
    rows: tuple[Row, ...]
    records: Mapping[Key, Record]
    routes: Mapping[str, Mapping[str, Mapping[str, str | None]]]

    def drafters_of(self, method: str) -> dict[str, Drafting]:
        """By route what a method drafts with."""
        row = self.rows_of(method)[0]
        if "routes" not in row.options:
            options = row.options["drafter"]
            return {WHOLE: Drafting(options["type"], options, row.drafter, row.drafter_revision)}
        found = {}
        for route, own in row.options["routes"].items():
            options = own.get("drafter") or row.options["routes"]["default"]["drafter"]
            known = self.routes[method][route]
            found[route] = Drafting(options["type"], options, known["name"], known["revision"])
        return found

    @property
    def drafting(self) -> list[str]:
        """The methods that draft with a drafter of specbench; others (AR, external code) have no distribution of it."""
        return list(dict.fromkeys(method_name(row) for row in self.rows if drafts(row)))

    def rows_of(self, method: str) -> list[Row]:
        return [row for row in self.rows if method_name(row) == method]

    def groups(self) -> dict[tuple[str, str], Row]:
        """AR's row of every (task, subset) that holds records, in the order of the run."""
        measured = {key[:2] for key in self.records}
        found = {(task_name(row), row.subset): row for row in self.rows_of("ar")}
        return {place: row for place, row in found.items() if place in measured}


def drafts(row: Row) -> bool:
    """Whether a row's method proposes tokens that a rule judges."""
    return row.num_draft_tokens > 0 and "decoder" not in row.options


def split(text: str) -> tuple[Path, str | None]:
    """PATH or PATH:METHOD (or another detail); a path that is there is taken as a whole."""
    before, colon, detail = text.rpartition(":")
    if not colon or Path(text).exists() or not Path(before).exists():
        return Path(text), None
    return Path(before), detail


def read_run(text: str) -> tuple[Run, list[str]]:
    """A run and its methods that are meant by RUN or RUN:METHOD.

    Raises ConfigError for what is no folder of a finished run, for one that another process measures into, for damaged
    records, and where no such method drafts.
    """
    path, method = split(text)
    if not path.is_dir():
        raise ConfigError(f"run '{text}': no such folder: {HOW}")
    for name in ("leaderboard.json", "records.jsonl"):
        if not (path / name).is_file():
            raise ConfigError(f"run '{path}': has no {name}: {HOW}")
    rows = load(path / "leaderboard.json")
    run = Run(path, tuple(rows), read_records(path, most_draft_tokens(rows)), _routes(path))
    if not run.drafting:
        raise ConfigError(f"run '{path}': none of its methods drafts: run one with a drafter, such as --method sd")
    if method is not None and method not in run.drafting:
        raise ConfigError(f"run '{text}': no method '{method}' that drafts: {nearest(method, run.drafting)}")
    return run, run.drafting if method is None else [method]


def most_draft_tokens(rows: Sequence[Row]) -> dict[str, int]:
    """By method the draft length at most: rows of single subsets may have that of a shorter route."""
    found: dict[str, int] = {}
    for row in rows:
        found[method_name(row)] = max(row.num_draft_tokens, found.get(method_name(row), 0))
    return found


def _routes(path: Path) -> Mapping[str, Mapping[str, Mapping[str, str | None]]]:
    """The routes that run.json tells of."""
    found = bounded.read_mapping(path / "run.json", HOW, strict=False).get("routes", {})
    if not isinstance(found, dict):
        raise ConfigError(f"{path / 'run.json'}: routes = {found!r:.60}: is no mapping: {HOW}")
    return found


def read_records(path: Path, methods: Mapping[str, int]) -> dict[Key, Record]:
    """The records of a folder in which nothing is measured now; one that cannot be locked is read as it is."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(path / ".lock", wait=False, shared=True))
        except BlockingIOError as error:
            raise ConfigError(f"run '{path}': another process measures into it: wait for it") from error
        except OSError:
            pass  # a folder that may only be read
        records = RecordFile(path / "records.jsonl").read(lambda record: check_record(record, methods))
    if not records:
        raise ConfigError(f"run '{path}': has no records: {HOW}")
    return {record_key(record): record for record in records}
