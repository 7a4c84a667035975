"""The folder of one run: what was asked for (run.json), the records (records.jsonl) and the rows (leaderboard.json)."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import locked, write_atomically
from specbench.running.records import Key, Record, RecordFile, check_record, record_key
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.task import TaskSpec

REVISIONS = "data_revisions"  # the commit of each subset's data on the hub


class RunFolder:
    """Holds one configuration; opening it with another one is refused, with what changed.

    `named_by_digest`: the path is `naming.default_folder` of this identity, so that a lost run.json can be written
    again.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], named_by_digest: bool = False) -> None:
        self.path = path
        self.named_by_digest = named_by_digest
        self.identity = json.loads(json.dumps(identity))
        self.records = RecordFile(path / "records.jsonl")
        self.leaderboard = path / "leaderboard.json"

    @contextmanager
    def open(self, methods: Mapping[str, int]) -> Iterator[dict[Key, Record]]:
        """Create the folder, or resume it, and keep other processes out of it for as long as the block runs: gives the
        records that are there, by their `record_key`. `methods`: the run's, with their num_draft_tokens.

        Raises ConfigError when it cannot be written, is in use, belongs to another run, or holds a damaged record.
        """
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.path / ".lock", wait=False))
                self._claim()
                self.records.path.open("ab").close()
            except BlockingIOError as error:
                raise ConfigError(
                    f"{self.path}: another process measures into it or reads it; wait for it, or name another with "
                    "--output"
                ) from error
            except OSError as error:
                raise ConfigError(f"--output {self.path}: {self._refusal(error)}; choose another folder") from error
            yield {record_key(record): record for record in self.records.read(lambda r: check_record(r, methods))}

    def _refusal(self, error: OSError) -> str:
        if self.path.is_file():
            return "it is a file, not a folder"
        if isinstance(error, FileNotFoundError):
            return "no folder can be made there"
        return f"cannot write there ({error.strerror or error})"

    def _claim(self) -> None:
        """Write what the run is into a new folder; compare it with what an old one says."""
        config = self.path / "run.json"
        if config.exists():
            repair = "delete it and repeat the command" if self.named_by_digest else "restore it from a copy"
            old = bounded.read_mapping(config, f"{repair}, or choose another --output", strict=False)
            self._compare(old)
            self._add_revisions(config, old)
        elif self.records.path.exists() and not self.named_by_digest:
            raise ConfigError(
                f"{self.path}: has records but no run.json, so nothing tells whose they are; restore it from a copy, "
                "or choose another --output"
            )
        else:
            write_atomically(config, json.dumps(self.identity, indent=2, ensure_ascii=False) + "\n")

    def _add_revisions(self, config: Path, old: Mapping[str, Any]) -> None:
        """Note the commits of subsets that no run into this folder has measured yet."""
        known = old.get(REVISIONS, {})
        revisions = {**known, **self.identity.get(REVISIONS, {})}
        if revisions != known:
            text = json.dumps({**old, REVISIONS: revisions}, indent=2, ensure_ascii=False)
            write_atomically(config, text + "\n")

    def _compare(self, old: Mapping[str, Any]) -> None:
        before, now = flatten(old), flatten(self.identity)
        changed = [
            f"{key}: {before.get(key, 'absent')} → {now.get(key, 'absent')}"
            for key in sorted({*before, *now})
            if before.get(key) != now.get(key)
            and (not key.startswith(f"{REVISIONS}.") or {key} <= before.keys() & now.keys())
        ]
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise ConfigError(
                f"{self.path} holds records of another configuration ({'; '.join(changed[:3])}{more}); "
                "choose another --output, or repeat the old command to resume it"
            )


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings and lists as dotted keys with printable values."""
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = {str(i): item for i, item in enumerate(value)}.items()
    else:
        return {prefix: json.dumps(value, ensure_ascii=False)}
    flat: dict[str, str] = {}
    for key, item in items:
        flat |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return flat


FILE = "specs.json"
REMEDY = "repeat the command of the run, which writes it again and measures nothing that is there"


@dataclass(frozen=True)
class SpecsFile:
    """The specs of a run, in the order in which it was asked for them."""

    tasks: tuple[TaskSpec, ...]
    methods: tuple[MethodSpec, ...]


def write_specs(folder: Path, spec: RunSpec) -> None:
    """Write what the rows of this run are of. Raises ConfigError where the disk refuses."""
    content = {
        "tasks": [_without_places(task.model_dump()) for task in spec.tasks],
        "methods": [method.model_dump() for method in spec.methods],
    }
    try:
        write_atomically(folder / FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder / FILE}: cannot write it ({error.strerror or error})") from error


def _without_places(data: dict[str, Any]) -> dict[str, Any]:
    """A task, or a part of it, with the names of its samples: in which folder of this machine they are is no part of
    what was measured."""
    made: dict[str, Any] = {
        key: _without_places(value) if isinstance(value, dict) else value for key, value in data.items()
    }
    sample = made.get("sample")
    if isinstance(sample, str):
        made["sample"] = Path(sample).name
    return made


def read_specs(folder: Path) -> SpecsFile:
    """Raises ConfigError for a file that is absent or broken."""
    path = folder / FILE
    content = bounded.read_json(path, REMEDY, strict=False)  # a threshold may be infinite
    try:
        return SpecsFile(
            tuple(build(TaskSpec, task, prefix=f"{path}: ") for task in content["tasks"]),
            tuple(build(MethodSpec, method, prefix=f"{path}: ") for method in content["methods"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read ({type(error).__name__}: {error}): {REMEDY}") from error


MAX_NAMED = 4  # tasks in the name of a folder


def default_folder(spec: RunSpec, identity: Mapping[str, Any]) -> Path:
    """runs/<tasks>-<methods>-<digest of all that was asked for>: the same command finds its records again, another
    one (other data, fewer subsets, a smaller limit) leaves them alone."""
    tasks = [task.name for task in spec.tasks] if len(spec.tasks) <= MAX_NAMED else [f"{len(spec.tasks)}-tasks"]
    methods = [method.name for method in spec.methods[1:] or spec.methods]
    return folder_of("-".join([*tasks, *methods]), {**identity, **asked_of(spec)})


def folder_of(names: str, asked: Mapping[str, Any]) -> Path:
    """runs/<names>-<digest of what was asked for>."""
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"{names}-{digest}"


def asked_of(spec: RunSpec) -> dict[str, Any]:
    """What is asked for and is no part of the identity: which examples, how often, and the place of local data."""
    found: dict[str, Any] = {"subsets": spec.subsets, "limit": spec.limit, "repeats": spec.repeats}
    if spec.subsets_per_task is not None:
        found["subsets_per_task"] = spec.subsets_per_task
    if spec.data is not None and spec.data not in ("hub", "sample"):
        found["data"] = str(Path(spec.data).resolve())
    return found
