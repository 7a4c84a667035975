"""The members of the embedded family: where their files are, whether they are the shipped ones, which fits a bridge.

A later version of the project adds members. It never replaces one under the same version number.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, nearest
from specbench.core.resources import EMBEDDED
from specbench.embedded.recipe import MEMBERS, Recipe

WEIGHTS = Path(__file__).parent / "weights"
MANIFEST = "manifest.json"

DRAFTERS = {
    "shared": "drafter",
    "intersection": "drafter-bpe",
    "union": "drafter-bpe",
    "retokenize": "drafter-bpe",
    "string": "drafter-bytes",
}


def drafter_for(bridge: str) -> str:
    """The name of the member that a bridge drafts with when nothing else is asked for."""
    return DRAFTERS.get(bridge, "drafter")


def member(name: str) -> Recipe:
    """The declaration of a member; an unknown name is a ConfigError."""
    for candidate in MEMBERS:
        if candidate.name == name:
            return candidate
    names = [candidate.name for candidate in MEMBERS]
    raise ConfigError(f"embedded model {name!r} does not exist: {nearest(name, names)}")


def digest_of(folder: Path) -> tuple[str, dict[str, str]]:
    """The digest of a member's folder (over the names and digests of its files), and the sha256 of each file."""
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(), files


def read_manifest(weights: Path = WEIGHTS) -> dict[str, Any]:
    """The entries of the manifest by name of member; empty when there is none."""
    path = weights / MANIFEST
    entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["members"] if path.is_file() else {}
    return entries


@cache
def member_path(name: str) -> Path:
    """The folder of a member, after a check of every file against the manifest; otherwise a ConfigError."""
    folder = WEIGHTS / member(name).name
    entry = read_manifest().get(name)
    if entry is None or not folder.is_dir():
        raise ConfigError(f"{folder}: the embedded model {name!r} is missing; reinstall specbench or rebuild it with "
                          "`python -m specbench.embedded.build`")  # fmt: skip
    files = digest_of(folder)[1]
    wrong = sorted(file for file in files.keys() | entry["files"].keys() if files.get(file) != entry["files"].get(file))
    if wrong:
        raise ConfigError(f"{folder / wrong[0]}: the file is not the one that was shipped (its digest differs from "
                          f"{MANIFEST}); restore it from the distribution")  # fmt: skip
    return folder


def source_of(name: str) -> str:
    """What transformers loads a model from: of `embedded:` and a member's name its folder, else the name."""
    return str(member_path(name.removeprefix(EMBEDDED))) if name.startswith(EMBEDDED) else name


def members() -> tuple[Recipe, ...]:
    """All declared members, targets before drafters."""
    return MEMBERS
