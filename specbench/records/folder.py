"""The folder of one run: its identity (run.json), specs (specs.json), records (records.jsonl) and rows."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import ResumableFolder, changed_settings, write_atomically, write_identity, writing
from specbench.core.values import json_digest
from specbench.records.records import RECORDS, RecordFile
from specbench.records.store import RecordStore
from specbench.specs.catalogue import method_meaning, subset_meaning, versioned_name_of_dump
from specbench.specs.components import RECORDED, build
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.task import TaskSpec

DATE = "template_date"
PRODUCTS = "products"  # how eager passes on a CPU multiply, by model
REVISIONS = "data_revisions"  # the commit of each subset's data on the hub


class RunFolder(ResumableFolder):
    """The folder with the records of one configuration. It cannot be opened with another configuration.

    `named_by_digest`: the path is `default_folder` of this identity, so that a lost run.json can be written again.
    `spec`: the tasks and methods of the run, to name the keys in which those of the folder differ.
    """

    IDENTITY = "run.json"

    def __init__(
        self, path: Path, identity: Mapping[str, Any], named_by_digest: bool = False, spec: RunSpec | None = None
    ) -> None:
        super().__init__(path)
        self.spec = spec
        self.named_by_digest = named_by_digest
        self.identity = json.loads(json.dumps(identity))
        self.records = RecordFile(path / RECORDS)
        self.leaderboard = path / "leaderboard.json"

    @contextmanager
    def open(self, methods: Mapping[str, int]) -> Iterator[RecordStore]:
        """Creates or resumes the folder and locks it for other processes until the block ends. Yields the existing
        records by their key. `methods`: the run's methods with their num_draft_tokens.

        Raises ConfigError if the folder cannot be written, is in use, belongs to another run, or holds a damaged
        record.
        """
        with self.held(self.identity):
            with self.writing():
                self.records.path.open("ab").close()
            yield RecordStore(self.records, lambda record: record.check(methods))

    def claim(self, identity: dict[str, Any]) -> None:
        """Raises ConfigError for records without a run.json. Adds the commits of subsets that no earlier run has
        measured."""
        config = self.path / self.IDENTITY
        if not config.exists() and self.records.path.exists() and not self.named_by_digest:
            raise ConfigError(
                f"{self.path}: has records but no run.json, so their settings are unknown; restore it from a copy, or "
                "choose another --output"
            )
        super().claim(identity)
        old = bounded.read_mapping(config, self.repair(), strict=False)
        known = revisions_of(old)
        revisions = {**known, **revisions_of(identity)}
        if revisions != known:
            write_identity(config, {**old, REVISIONS: revisions})

    def changes(self, old: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        """Returns the changed settings: the keys of a changed task or method, if both are known. A subset that only one
        of the two runs has measured is not a change."""
        both = revisions_of(old).keys() & revisions_of(now).keys()
        before, after = ({**each, REVISIONS: {key: revisions_of(each)[key] for key in both}} for each in (old, now))
        keys = self._changed_keys()
        return [each for text in changed_settings(before, after) for each in keys.get(text.split(": ")[0]) or [text]]

    def _changed_keys(self) -> dict[str, list[str]]:
        """Returns the changed keys of each task and method with their values in specs.json and now, by `tasks.NAME` and
        `methods.NAME`; nothing if the file or the spec is not known."""
        try:
            if self.spec is None:
                return {}
            tasks = {task.name: task for task in read_tasks(self.path)}
            methods = {method["name"]: method for method in _read(self.path, "methods", dict)}
        except ConfigError:  # an earlier version's, or lost
            return {}
        found = {}
        for task in self.spec.tasks:
            old = tasks.get(task.name, task)
            both = [name for name in task.subset_names if name in old.subset_names]
            changes = [changed_settings(subset_meaning(old, name), subset_meaning(task, name)) for name in both]
            place = f"tasks.{task.name}"
            found[place] = list(dict.fromkeys(f"{place}.{each}" for each in chain.from_iterable(changes)))
        for method in self.spec.methods:
            place = f"methods.{method.name}"
            now = json.loads(json.dumps(method.model_dump()))
            before = methods.get(method.name, now)
            found[place] = [f"{place}.{each}" for each in changed_settings(method_meaning(before), method_meaning(now))]
        return found

    def recorded_date(self, asked: str | None) -> date | None:
        """Returns the date that the chat templates of the folder's records print, if a run is to take it instead of its
        own: it asks for none, or for today's. Returns None for a new folder, and if the dates are the same."""
        recorded = self._recorded(DATE) if asked in (None, "today") else None
        if recorded in (None, self.identity.get(DATE)):
            return None
        try:
            return date.fromisoformat(str(recorded))
        except ValueError as error:
            place = self.path / self.IDENTITY
            raise ConfigError(f"{place}: {DATE} = {recorded!r}: is not a date: {self.repair()}") from error

    def recorded_products(self) -> Mapping[str, str]:
        """Returns the products with which the folder's records were made, by model; empty for a new folder."""
        found = self._recorded(PRODUCTS)
        return found if isinstance(found, Mapping) else {}

    def _recorded(self, setting: str) -> Any:
        """Returns a setting of run.json; None if the file or the setting is absent."""
        config = self.path / self.IDENTITY
        return bounded.read_mapping(config, self.repair(), strict=False).get(setting) if config.is_file() else None

    def repair(self) -> str:
        """Returns the remedy for an unreadable run.json."""
        how = "delete it and repeat the command" if self.named_by_digest else "restore it from a copy"
        return f"{how}, or choose another --output"

    def holds(self) -> str:
        """Returns "holds records"."""
        return "holds records"


def revisions_of(identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the commits of the data in an identity, by subset."""
    found = identity.get(REVISIONS)
    return found if isinstance(found, Mapping) else {}


FILE = "specs.json"
REMEDY = "repeat the command of the run, which writes it again and measures nothing twice"


def write_specs(folder: Path, spec: RunSpec) -> None:
    """Writes the specs of the tasks and methods of a run. Raises ConfigError for a disk error."""
    content = {
        "tasks": [_without_sample_paths(task.model_dump()) for task in spec.tasks],
        "methods": [method.model_dump() for method in spec.methods],
    }
    with writing(folder / FILE, "choose another --output, or repair this one and repeat the command"):
        write_atomically(folder / FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


ENVIRONMENT = "environment.json"


def add_environment(folder: Path, details: Mapping[str, Any]) -> None:
    """Notes the machine and the software that measured (`models.machine.details`), unless the run's file has them. A
    broken file is replaced: no row depends on it. Raises ConfigError if the file cannot be written."""
    known = read_environments(folder)
    if details not in known:
        with writing(folder / ENVIRONMENT, REMEDY):
            text = json.dumps({"environments": [*known, details]}, ensure_ascii=False, indent=1)
            write_atomically(folder / ENVIRONMENT, text + "\n")


def read_environments(folder: Path) -> list[Mapping[str, Any]]:
    """Returns what measured a run, in order; empty for runs of earlier versions and a broken file."""
    try:
        found = bounded.read_mapping(folder / ENVIRONMENT, REMEDY).get("environments")
    except ConfigError:
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _without_sample_paths(data: dict[str, Any]) -> dict[str, Any]:
    """Returns a task, or a part of it, with the paths of its samples reduced to file names."""
    made: dict[str, Any] = {
        key: _without_sample_paths(value) if isinstance(value, dict) else value for key, value in data.items()
    }
    sample = made.get("sample")
    if isinstance(sample, str):
        made["sample"] = Path(sample).name
    return made


class RecordedMethod(NamedTuple):
    """The properties of a method that are needed to read records. `named`: name@version:digest. `most_draft_tokens`:
    the maximum per step over all routes."""

    name: str
    named: str
    decodes_with: str
    most_draft_tokens: int


def _recorded_method(method: dict[str, Any]) -> RecordedMethod:
    routes = (method.get("routes") or {}).values()
    num_draft_tokens = max(int(part.get("num_draft_tokens") or 0) for part in (method, *routes))
    return RecordedMethod(
        method["name"], versioned_name_of_dump(method), method.get("decodes_with", "target"), num_draft_tokens
    )


def read_tasks(folder: Path) -> tuple[TaskSpec, ...]:
    """Returns the specs of a run's tasks. Raises ConfigError if the file is absent or broken."""
    return _read(folder, "tasks", partial(build, TaskSpec, prefix=f"{folder / FILE}: "))


def read_method_specs(folder: Path, checked: bool = True) -> tuple[MethodSpec, ...]:
    """Returns the specs of a run's methods. `checked`: otherwise they are taken as the run wrote them, and the code of
    their components, which imports torch, is not imported. Raises ConfigError if the file is absent or broken."""
    make = partial(build, MethodSpec, prefix=f"{folder / FILE}: ", context=None if checked else RECORDED)
    return _read(folder, "methods", make)


def read_methods(folder: Path) -> dict[str, RecordedMethod]:
    """Returns the methods of a run by name without validating their specs. Raises ConfigError if the file is absent or
    broken."""
    return {method.name: method for method in _read(folder, "methods", _recorded_method)}


Made = TypeVar("Made")


def _read(folder: Path, key: str, make: Callable[[dict[str, Any]], Made]) -> tuple[Made, ...]:
    path = folder / FILE
    content = bounded.read_json(path, REMEDY, strict=False)  # a threshold may be infinite
    try:
        return tuple(make(each) for each in content[key])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({type(error).__name__}: {error}): {REMEDY}") from error


MAX_NAMED = 4  # tasks that the name of a folder lists


def default_folder(spec: RunSpec, identity: Mapping[str, Any]) -> Path:
    """Returns runs/<tasks>-<methods>-<digest of the request>. The same command finds its records again; a request with
    other data, subsets or limits has another folder."""
    return folder_of(folder_names(spec), {**identity, **selection_of(spec)})


def folder_names(spec: RunSpec) -> str:
    """Returns the tasks and methods in the name of a run's default folder."""
    tasks = [task.name for task in spec.tasks] if len(spec.tasks) <= MAX_NAMED else [f"{len(spec.tasks)}-tasks"]
    return "-".join([*tasks, *(method.name for method in spec.methods[1:] or spec.methods)])


def folder_of(names: str, asked: Mapping[str, Any]) -> Path:
    """Returns runs/<names>-<digest of the request>."""
    return Path("runs") / f"{names}-{json_digest(asked, 8)}"


def selection_of(spec: RunSpec) -> dict[str, Any]:
    """Returns the parts of a request that the identity lacks: the selection of examples (subsets, limit, subsets per
    task), the repeats, and the path of local data."""
    found: dict[str, Any] = {"subsets": spec.subsets, "limit": spec.limit, "repeats": spec.repeats}
    if spec.subsets_per_task is not None:
        found["subsets_per_task"] = spec.subsets_per_task
    if spec.data is not None and spec.data not in ("hub", "sample"):
        found["data"] = str(Path(spec.data).resolve())
    return found
