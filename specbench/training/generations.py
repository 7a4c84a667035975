"""The target's continuations on disk, by all that they depend on: none is made twice, an interruption keeps them."""

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.console import say
from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.running.progress import PLAIN_LINE_SECONDS
from specbench.training.teacher import Generator, Ids, Job

FILE = "generations.sqlite"
MANY = 500  # keys of one query
Made = Iterator[list[tuple[int, Any]]]  # batches of places with what was made for them


class Generations:
    """One file; what is in it is written batch by batch, each as a whole. `console`: told how many are made."""

    def __init__(self, folder: Path, console: Console | None = None) -> None:
        self.path = folder / FILE
        self._console = console

    def continued(self, target: CausalLM, generator: Generator, jobs: Sequence[Job], batch_size: int) -> list[Ids]:
        """The target's continuations, in the order of the jobs; those that are there are not generated again."""
        common = {
            "model": fingerprint(target), "sampling": asdict(generator.sampling),
            "max_new_tokens": generator.max_new_tokens, "ends": sorted(generator.eos_token_ids),
        }  # fmt: skip
        greedy = generator.sampling.greedy
        keys = [key_of({**common, "prompt": job.prompt_ids, "seed": 0 if greedy else job.seed}) for job in jobs]

        def make(places: Sequence[int]) -> Made:
            for batch in generator.batches([jobs[place] for place in places], batch_size):
                yield [(places[index], ids) for index, ids in batch]

        temperature = f"{generator.sampling.temperature:g}"
        what = f"continuations by {target.name} at temperature {temperature}"
        return [tuple(ids) for ids in self.filled(keys, make, what)]

    def filled(self, keys: Sequence[str], make: Callable[[Sequence[int]], Made], what: str) -> list[Any]:
        """What is kept under each key; `make` is asked, once, for the places of those that are missing.

        Raises ConfigError where the disk refuses, or the file is damaged.
        """
        with self._open() as database:
            known = read(database, keys)
            first = {key: place for place, key in reversed(list(enumerate(keys))) if key not in known}
            missing = sorted(first.values())
            num_made, said = 0, time.monotonic()
            for batch in make(missing) if missing else ():
                new = {keys[place]: value for place, value in batch}
                write(database, new)
                known |= new
                num_made += len(batch)
                if self._console and (num_made == len(missing) or time.monotonic() - said >= PLAIN_LINE_SECONDS):
                    said = time.monotonic()
                    say(self._console, f"{num_made}/{len(missing)} {what} ({len(keys) - len(missing)} from the cache)")
        return [known[key] for key in keys]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=60)) as database:
                with database:
                    database.execute("CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
                yield database
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"{self.path}: cannot keep the target's continuations there ({error}): free the disk, fix the "
                "permissions, or delete the file if it is damaged"
            ) from error


def read(database: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Any]:
    """What is kept, by key."""
    found: dict[str, Any] = {}
    for start in range(0, len(keys), MANY):
        some = list(keys[start : start + MANY])
        marks = ",".join("?" * len(some))
        found |= dict(database.execute(f"SELECT key, value FROM kept WHERE key IN ({marks})", some))
    return {key: json.loads(value) for key, value in found.items()}


def write(database: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    rows = [(key, json.dumps(value, ensure_ascii=False)) for key, value in values.items()]
    with database:
        database.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)


def key_of(request: Mapping[str, Any]) -> str:
    """64 hex digits over all that a continuation depends on."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def fingerprint(model: CausalLM) -> str:
    """What identifies the distribution that a model gives: its revision, or its weights where it has none, and the
    precision it computes in."""
    name = model.revision
    if name is None:
        state = hashlib.sha256()
        for key, value in sorted(model.model.state_dict().items()):
            state.update(key.encode() + value.detach().cpu().float().numpy().tobytes())
        name = f"weights-{state.hexdigest()[:16]}"
    four_bits = " quantized" if getattr(model.model, "is_quantized", False) else ""
    return f"{name} {model.dtype}{four_bits}"
