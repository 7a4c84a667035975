"""The embedded models: tiny models, and the small synthetic world that they know.

This file has the shipped members of the family: their folders, their manifest and their digests.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, nearest
from specbench.core.values import WHOLE, file_digest, json_digest

WEIGHTS = Path(__file__).parent / "weights"
MANIFEST = "manifest.json"


def digest_of(folder: Path) -> tuple[str, dict[str, str]]:
    """Returns the digest of a member's folder, over the names and digests of its files, and each file's sha256."""
    files = {path.name: file_digest(path, WHOLE) for path in sorted(folder.iterdir())}
    return json_digest(files, WHOLE), files


def read_manifest(weights: Path = WEIGHTS) -> dict[str, Any]:
    """Returns the manifest's entries by member name. They are empty without a manifest."""
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
        raise ConfigError(f"{folder}: the embedded model {name!r} is missing: reinstall specbench, or rebuild it with "
                          "`python -m tools.embedded` in a clone of the repository")  # fmt: skip
    shipped, files = entries[name]["files"], digest_of(folder)[1]
    wrong = sorted(file for file in files.keys() | shipped.keys() if files.get(file) != shipped.get(file))
    if wrong:
        raise ConfigError(f"{folder / wrong[0]}: the file was changed (its digest differs from {MANIFEST}): restore it "
                          "from the distribution")  # fmt: skip
    return folder
