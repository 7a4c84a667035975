"""The folder of one run: its identity (run.json), specs (specs.json), records (records.jsonl) and rows."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import COMMAND, ResumableFolder, changed_settings, write_atomically, write_identity, writing
from specbench.core.values import json_digest
from specbench.records.records import RECORDS, RecordFile
from specbench.records.store import RecordStore
from specbench.specs.catalogue import method_meaning, subset_meaning, versioned_name_of_dump
from specbench.specs.components import RECORDED, build
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.run_options import OPTIONS
from specbench.specs.task import TaskSpec

DATE = "template_date"
PRODUCTS = "products"  # how eager passes on a CPU multiply, by model
REVISIONS = "data_revisions"  # the commit of each subset's data on the hub
UNUSED_ENDS = "unused_ends"  # special tokens that end texts by their name and end no answer of the run: ids by text


class RunFolder(ResumableFolder):
    """The folder with the records of one configuration. It cannot be opened with another configuration.

    `named_by_digest`: the path is `default_folder` of this identity, so that a lost run.json can be written again.
    `spec`: the tasks and methods of the run, to name the keys in which those of the folder differ. `command`: the
    command line, which a new folder keeps beside its identity, for those who want to resume it.
    """

    IDENTITY = "run.json"

    def __init__(
        self, path: Path, identity: Mapping[str, Any], named_by_digest: bool = False, spec: RunSpec | None = None,
        command: str = "",
    ) -> None:  # fmt: skip
        super().__init__(path)
        self.spec = spec
        self.command = command
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
        super().claim({**identity, COMMAND: self.command} if self.command else identity)
        old = bounded.read_mapping(config, self.repair(), strict=False)
        known = revisions_of(old)
        revisions = {**known, **revisions_of(identity)}
        if revisions != known:
            write_identity(config, {**old, REVISIONS: revisions})

    def check_known(self, whole: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        """Raises ConfigError if the folder belongs to another run by what is known before models are loaded. `whole`:
        settings of the identity; null for those that it lacks. `parts`: settings of which a part is known, nested."""
        old = bounded.read_mapping(self.path / self.IDENTITY, self.repair(), strict=False)
        before = {name: old[name] for name in (*whole, COMMAND) if name in old} | _values_at(old, parts)
        now = {name: value for name, value in whole.items() if value is not None} | dict(parts)
        self.compare(before, json.loads(json.dumps(now)))

    def changes(self, old: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        """Returns the changed settings, each as the command line names it: the keys of a changed task or method, if
        both are known. A subset that only one of the two runs has measured is not a change."""
        both = revisions_of(old).keys() & revisions_of(now).keys()
        before, after = (
            {**_without_threads(each), REVISIONS: {key: revisions_of(each)[key] for key in both}, COMMAND: {}}
            for each in (old, now)
        )
        keys = self._changed_keys()
        changes = changed_settings(before, after)
        return [each for text in changes for each in keys.get(text.split(": ")[0]) or [as_given(text)]]

    def _changed_keys(self) -> dict[str, list[str]]:
        """Returns the changed keys of each task and method, as --set names them, with their values in specs.json and
        now, by `tasks.NAME` and `methods.NAME`; nothing if the file or the spec is not known."""
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
            every = dict.fromkeys(chain.from_iterable(changes))
            found[f"tasks.{task.name}"] = [_of(f"task {task.name}", each) for each in every]
        for method in self.spec.methods:
            now = json.loads(json.dumps(method.model_dump()))
            changes_of_method = changed_settings(method_meaning(methods.get(method.name, now)), method_meaning(now))
            found[f"methods.{method.name}"] = [_of(f"method {method.name}", each) for each in changes_of_method]
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


THREADS = re.compile(r", \d+ threads?\b")  # in the name of a CPU
AS_GIVEN = {  # settings by what the command line calls them; others have the name of their option, or none
    "environment.num_threads": "--threads", "environment.device": "device (--device)",
    "environment.dtype": "dtype (--dtype, --quantize)", "environment.engine": "engine (--engine)",
    "target.name": "--target", "code_execution": "--allow-code-execution",
}  # fmt: skip


def as_given(change: str) -> str:
    """Returns a changed setting, "KEY: before → now", with the option that gives it in place of the key in run.json."""
    key, _, values = change.partition(": ")
    first, _, rest = key.partition(".")
    if key in AS_GIVEN:
        name = AS_GIVEN[key]
    elif first in OPTIONS:
        name = f"{OPTIONS[first].flag} {rest}".strip()
    elif first == "drafters" and rest.endswith(".name"):
        name = f"drafter of method {rest.removesuffix('.name')}"
    elif first in ("tasks", "methods"):
        name = f"{first.removesuffix('s')} {rest}"
    else:
        name = key
    return f"{name}: {values}"


def _of(owner: str, change: str) -> str:
    """Returns "KEY of OWNER: before → now" of "KEY: before → now"."""
    key, _, values = change.partition(": ")
    return f"{key} of {owner}: {values}"


def _without_threads(identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns an identity whose CPU is named without the number of threads, which is a setting of its own."""
    conditions = identity.get("environment")
    if not isinstance(conditions, Mapping) or not {"device", "num_threads"} <= conditions.keys():
        return identity
    return {**identity, "environment": {**conditions, "device": THREADS.sub("", str(conditions["device"]))}}


def _values_at(data: Any, like: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of `data` that have the place of a value of `like`."""
    return {
        key: _values_at(data[key], value) if isinstance(value, Mapping) else data[key]
        for key, value in like.items() if isinstance(data, Mapping) and key in data
    }  # fmt: skip


def revisions_of(identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the commits of the data in an identity, by subset."""
    found = identity.get(REVISIONS)
    return found if isinstance(found, Mapping) else {}


def unused_ends_of(identity: Mapping[str, Any]) -> dict[int, str]:
    """Returns the texts of the special tokens that end texts by their name and end no answer of a run, by id."""
    found = identity.get(UNUSED_ENDS)
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {index: text for text, index in pairs if type(index) is int and 0 <= index < 2**31}


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
