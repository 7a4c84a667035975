"""The embedded family: tiny models with their manifest, and rows of the small synthetic world that they know.

`python -m tools.embedded` builds both in a clone of the repository.
"""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import TypedDict

from specbench.core.errors import ConfigError, nearest
from specbench.core.values import WHOLE, file_digest, json_digest

WEIGHTS = Path(__file__).parent / "weights"
MANIFEST = "manifest.json"
WORLD_ROWS = Path(__file__).parent / "rows"  # one NAME.jsonl.xz for each kind of rows
MAX_WORLD_ROWS = 2048  # of each subset; a subset with fewer different rows has all of them


class Member(TypedDict):
    """The entry of a model in the manifest. `files`: the sha256 of each file."""

    role: str
    version: int
    digest: str
    num_bytes: int
    files: dict[str, str]


def digest_of(folder: Path) -> tuple[str, dict[str, str]]:
    """Returns the digest of a member's folder, over the names and digests of its files, and each file's sha256."""
    files = {path.name: file_digest(path, WHOLE) for path in sorted(folder.iterdir())}
    return json_digest(files, WHOLE), files


def read_manifest(weights: Path = WEIGHTS) -> dict[str, Member]:
    """Returns the manifest's entries by member name. They are empty without a manifest."""
    path = weights / MANIFEST
    entries: dict[str, Member] = json.loads(path.read_text(encoding="utf-8"))["members"] if path.is_file() else {}
    return entries


@cache
def member_path(name: str) -> Path:
    """Returns the folder of a member after checking every file against the manifest. Raises ConfigError."""
    entries = read_manifest()
    folder = WEIGHTS / name
    if entries and name not in entries:
        raise ConfigError(f"embedded model {name!r} does not exist: {nearest(name, entries)}")
    if not entries or not folder.is_dir():
        raise ConfigError(f"{folder}: the embedded model {name!r} is missing: reinstall specbench, or rebuild it with "
                          "`python -m tools.embedded` in a clone of the repository")  # fmt: skip
    shipped = entries[name]["files"]
    files = digest_of(folder)[1]
    wrong = sorted(file for file in files.keys() | shipped.keys() if files.get(file) != shipped.get(file))
    if wrong:
        raise ConfigError(f"{folder / wrong[0]}: the file was changed (its digest differs from {MANIFEST}): restore it "
                          "from the distribution")  # fmt: skip
    return folder


def world_names() -> list[str]:
    """Returns the kinds of rows. All but the drills are named after the task that they are rows of."""
    return sorted(path.name.removesuffix(".jsonl.xz") for path in WORLD_ROWS.glob("*.jsonl.xz"))


@cache
def world_rows(name: str) -> dict[str, list[tuple[str, str]]]:
    """Returns different rows for training as (prompt, answer) by subset, at most MAX_WORLD_ROWS of each. `specbench
    run` never measures them."""
    rows: dict[str, list[tuple[str, str]]] = {}
    with lzma.open(WORLD_ROWS / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            rows.setdefault(row["subset"], []).append((row["prompt"], row["answer"]))
    return rows
