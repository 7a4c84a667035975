"""Folders of runs, read for their drafting methods and records."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.core import bounded
from specbench.core.errors import ConfigError, nearest
from specbench.core.files import locked
from specbench.results.leaderboard import load
from specbench.results.row import Row
from specbench.results.units import short
from specbench.running.records import Key, Record, RecordFile, check_record, record_key

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


@dataclass(frozen=True)
class Common:
    """What runs have in common: their target, their groups in order, and the records that all of them hold."""

    runs: tuple[Run, ...]
    groups: dict[tuple[str, str], Row]
    keys: dict[tuple[str, str], list[Key]]  # of each group, those of the same prompt in all runs
    num_left_out: int  # records of the first run's groups that another run lacks


def common(runs: Sequence[Run], tasks: Sequence[str], subsets: Sequence[str]) -> Common:
    """The chosen tasks and subsets (all where none is named). Raises ConfigError where runs have another target, or no
    group of the same prompts."""
    first = runs[0]
    _check_target(runs)
    groups = {place: row for place, row in first.groups().items() if all(place in run.groups() for run in runs)}
    for option, place, names in (("--task", 0, tasks), ("--subset", 1, subsets)):
        known = {group[place] for group in groups}
        for name in names:
            if name not in known:
                raise ConfigError(f"{option} {name}: the runs have none: {nearest(name, known)}")
        groups = {group: row for group, row in groups.items() if not names or group[place] in names}
    keys: dict[tuple[str, str], list[Key]] = {place: [] for place in groups}
    num_left_out = 0
    for key, record in first.records.items():
        if key[:2] in groups:
            same = all(run.records.get(key, {}).get("prompt") == record["prompt"] for run in runs)
            num_left_out += not same
            keys[key[:2]] += [key] * same
    if not any(keys.values()):
        paths = ", ".join(str(run.path) for run in runs)
        raise ConfigError(f"runs {paths}: have no prompt in common: give runs of the same task and subsets")
    return Common(tuple(runs), {g: row for g, row in groups.items() if keys[g]}, keys, num_left_out)


def _check_target(runs: Sequence[Run]) -> None:
    targets: dict[Any, Path] = {}
    for run in runs:
        targets.setdefault((run.rows[0].target, run.rows[0].target_revision), run.path)
    if len(targets) > 1:
        shown = "; ".join(f"{path} has {name} ({revision})" for (name, revision), path in targets.items())
        raise ConfigError(f"runs of several targets do not compare ({shown}): give runs of one target")
