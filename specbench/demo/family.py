"""The members of the embedded family as data, where their weights are, and whether the files are the shipped ones.

A later version of the project adds members. It never replaces one under the same version number.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError

WEIGHTS = Path(__file__).parent / "weights"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Stage:
    """Some training steps at one depth; Muon's learning rate falls from first to last (AdamW's is a fraction of it)."""

    num_layers: int
    num_steps: int
    first_rate: float
    last_rate: float


@dataclass(frozen=True)
class TokenizerRecipe:
    """A tokenizer learnt from rows of some worlds."""

    worlds: Mapping[str, float]
    vocab_size: int
    num_rows: int
    seed: int


@dataclass(frozen=True)
class Member:
    """One model and how it is made.

    `worlds` gives their shares of the training data, `mix_power` sharpens the share of the well-resourced languages.
    """

    name: str
    role: str
    version: int
    tokenizer: str
    worlds: Mapping[str, float]
    width: int
    stages: tuple[Stage, ...]
    batch_size: int
    mix_power: float
    seed: int


TOKENIZERS = {"shared": TokenizerRecipe({"mgsm": 1.0}, vocab_size=1280, num_rows=20_000, seed=0)}

MEMBERS = (
    Member(
        name="target",
        role="target",
        version=1,
        tokenizer="shared",
        worlds={"mgsm": 0.7, "drill": 0.3},
        width=128,
        stages=(
            Stage(3, 2600, 2e-2, 1e-2),
            Stage(6, 1000, 1e-2, 6e-3),
            Stage(12, 450, 6e-3, 3e-3),
            Stage(24, 350, 3e-3, 2e-4),
        ),
        batch_size=32,
        mix_power=1.0,
        seed=1,
    ),
    Member(
        name="drafter",
        role="drafter",
        version=1,
        tokenizer="shared",
        worlds={"mgsm": 1.0},
        width=64,
        stages=(Stage(1, 1600, 2e-2, 1e-3),),
        batch_size=32,
        mix_power=4.0,
        seed=2,
    ),
)


def member(name: str) -> Member:
    """The declaration of a member; an unknown name is a ConfigError."""
    for candidate in MEMBERS:
        if candidate.name == name:
            return candidate
    names = [candidate.name for candidate in MEMBERS]
    near = (difflib.get_close_matches(name, names, n=1) or names)[0]
    raise ConfigError(f"embedded model {name!r} does not exist; did you mean {near!r}? Choices: {', '.join(names)}")


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
                          "`python -m specbench.demo.build`")  # fmt: skip
    files = digest_of(folder)[1]
    wrong = sorted(file for file in files.keys() | entry["files"].keys() if files.get(file) != entry["files"].get(file))
    if wrong:
        raise ConfigError(f"{folder / wrong[0]}: the file is not the one that was shipped (its digest differs from "
                          f"{MANIFEST}); restore it from the distribution")  # fmt: skip
    return folder


def members() -> tuple[Member, ...]:
    """All declared members, targets before drafters."""
    return MEMBERS
