"""The recipes of the embedded family: recipes.yaml says from what each tokenizer and each member is built.

A later version may add members. It never replaces a member under the same version number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


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
    """The fields of every member's recipe. `role`: target, drafter, ngram, retrieval or head."""

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
class CorpusRecipe(MemberIdentity):
    """An n-gram model, which has an order, or a datastore. It is made of the tokens of rows of some worlds: prompt,
    completion, end."""

    worlds: Mapping[str, float]
    order: int | None = None
    num_rows: int
    mix_power: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class TrainedMember(MemberIdentity):
    """A drafter that `specbench train` builds for the family's target from the member `start`, or a new draft head.

    `stages`: the settings of its trainings (see `training.spec`), without target, drafter and output; each starts from
    the weights of the one before.
    """

    start: str | None
    stages: tuple[Mapping[str, Any], ...]


Recipe = Member | CorpusRecipe | TrainedMember


def recipe_of(entry: Mapping[str, Any]) -> Recipe:
    """Returns the recipe of an entry of recipes.yaml."""
    if "num_rows" in entry:
        return CorpusRecipe(**entry)
    if "start" in entry:
        return TrainedMember(**{**entry, "stages": tuple(entry["stages"])})
    return Member(**{**entry, "stages": tuple(Stage(**stage) for stage in entry["stages"])})


RECIPES = yaml.safe_load(Path(__file__).with_name("recipes.yaml").read_text(encoding="utf-8"))
TOKENIZERS = {name: TokenizerRecipe(**entry) for name, entry in RECIPES["tokenizers"].items()}
MEMBERS = {entry["name"]: recipe_of(entry) for entry in RECIPES["members"]}
