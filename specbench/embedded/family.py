"""The members of the embedded family: their recipes, their files, and the drafter of each bridge.

A later version may add members. It never replaces a member under the same version number.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from specbench.core.digests import WHOLE, file_digest, json_digest
from specbench.core.errors import ConfigError, nearest


@dataclass(frozen=True)
class Stage:
    """Training steps at one depth; Muon's learning rate falls from first to last (AdamW's is a fraction of it)."""

    num_layers: int
    num_steps: int
    first_rate: float
    last_rate: float


@dataclass(frozen=True)
class TokenizerRecipe:
    """A byte-level BPE tokenizer trained on rows of some worlds.

    No token crosses the borders of `pieces` (a regular expression). `vocab_size` includes the special tokens: with only
    the 256 bytes besides them, every byte is a token. `has_start`: a start token precedes every text. `mix_power`: as
    in Member.
    """

    worlds: Mapping[str, float]
    vocab_size: int
    num_rows: int
    seed: int
    pieces: str
    mix_power: float = 1.0
    has_start: bool = False
    max_length: int = 2048


@dataclass(frozen=True, kw_only=True)
class MemberIdentity:
    """The fields of every member's recipe. `role`: target, drafter or ngram."""

    name: str
    role: str = "drafter"
    version: int
    tokenizer: str


@dataclass(frozen=True, kw_only=True)
class Member(MemberIdentity):
    """One model and how it is built.

    `worlds` gives their shares of the training data; `mix_power` increases the share of the well-resourced languages. A
    batch holds texts of similar length with at most `batch_tokens` tokens, including padding.
    """

    worlds: Mapping[str, float]
    width: int
    stages: tuple[Stage, ...]
    batch_tokens: int
    mix_power: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class NgramRecipe(MemberIdentity):
    """An n-gram folder over the tokens of a tokenizer, counted on rows of some worlds: prompt, completion, end."""

    worlds: Mapping[str, float]
    order: int
    num_rows: int
    mix_power: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class TrainedMember(MemberIdentity):
    """A drafter that `specbench train` builds from the member `start` for the family's target.

    `stages`: the settings of its trainings (see `training.spec`), without target, drafter and output; each starts from
    the weights of the one before.
    """

    start: str
    stages: tuple[Mapping[str, Any], ...]


Recipe = Member | NgramRecipe | TrainedMember


def recipe_of(entry: Mapping[str, Any]) -> Recipe:
    """Returns the recipe of an entry of family.yaml."""
    if "order" in entry:
        return NgramRecipe(**entry)
    if "start" in entry:
        return TrainedMember(**{**entry, "stages": tuple(entry["stages"])})
    return Member(**{**entry, "stages": tuple(Stage(**stage) for stage in entry["stages"])})


FAMILY = yaml.safe_load(Path(__file__).with_name("family.yaml").read_text(encoding="utf-8"))
TOKENIZERS = {name: TokenizerRecipe(**entry) for name, entry in FAMILY["tokenizers"].items()}
MEMBERS = tuple(map(recipe_of, FAMILY["members"]))
WEIGHTS = Path(__file__).parent / "weights"
MANIFEST = "manifest.json"


def member(name: str) -> Recipe:
    """Returns the recipe of a member. Raises ConfigError for an unknown name."""
    for candidate in MEMBERS:
        if candidate.name == name:
            return candidate
    names = [candidate.name for candidate in MEMBERS]
    raise ConfigError(f"embedded model {name!r} does not exist: {nearest(name, names)}")


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
