"""The folder of one run: what was asked for (run.json), the records (records.jsonl) and the rows (leaderboard.json)."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from specbench import bounded
from specbench.errors import ConfigError
from specbench.files import write_atomically
from specbench.running.file_lock import locked
from specbench.running.record_check import check_record
from specbench.running.records import Key as Key
from specbench.running.records import Record, RecordFile
from specbench.running.records import record_key as record_key

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
