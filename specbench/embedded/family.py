"""The members of the embedded family as they are shipped: their folders, their manifest and their digests."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from specbench.core.digests import WHOLE, file_digest, json_digest
from specbench.core.errors import ConfigError, nearest

WEIGHTS = Path(__file__).parent / "weights"
MANIFEST = "manifest.json"


def digest_of(folder: Path) -> tuple[str, dict[str, str]]:
    """Returns the digest of a member's folder (over the names and digests of its files), and the sha256 of each
    file."""
    files = {path.name: file_digest(path, WHOLE) for path in sorted(folder.iterdir())}
    return json_digest(files, WHOLE), files


def read_manifest(weights: Path = WEIGHTS) -> dict[str, Any]:
    """Returns the entries of the manifest by name of member; empty if there is none."""
    path = weights / MANIFEST
    entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["members"] if path.is_file() else {}
    return entries


@cache
def member_path(name: str) -> Path:
    """Returns the folder of a member after checking every file against the manifest. Raises ConfigError."""
    entries, folder = read_manifest(), WEIGHTS / name
    if entries and name not in entries:
        raise ConfigError(f"embedded model {name!r} does not exist: {nearest(name, entries)}")
    if not entries or not folder.is_dir():
        raise ConfigError(f"{folder}: the embedded model {name!r} is missing; reinstall specbench, or rebuild it with "
                          "`python -m tools.embedded` in a clone of the repository")  # fmt: skip
    shipped, files = entries[name]["files"], digest_of(folder)[1]
    wrong = sorted(file for file in files.keys() | shipped.keys() if files.get(file) != shipped.get(file))
    if wrong:
        raise ConfigError(f"{folder / wrong[0]}: the file is not the one that was shipped (its digest differs from "
                          f"{MANIFEST}); restore it from the distribution")  # fmt: skip
    return folder
