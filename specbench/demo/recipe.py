"""The kinds of recipes that the members of the embedded family are made by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Vowel signs (\p{M}) stay with their letters: without them Bengali, Telugu and Thai words fall to pieces. A digit is a
# token of its own in both: where a drafter writes 14 as one token, the tokens that both models have say it badly.
# Spaces run together up to the one before a word: the indentation of code.
PIECES = r" ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s"
PIECES_WITH_NEWLINES = r" ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s+(?!\S)|\s"


@dataclass(frozen=True)
class Stage:
    """Some training steps at one depth; Muon's learning rate falls from first to last (AdamW's is a fraction of it)."""

    num_layers: int
    num_steps: int
    first_rate: float
    last_rate: float


@dataclass(frozen=True)
class TokenizerRecipe:
    """A byte-level BPE tokenizer learnt from rows of some worlds.

    No token crosses the borders of `pieces` (a regular expression). `vocab_size` counts the special tokens: where only
    the 256 bytes come to them, every byte is a token. `has_start`: a start token comes before every text. `mix_power`:
    as in Member.
    """

    worlds: Mapping[str, float]
    vocab_size: int
    num_rows: int
    seed: int
    pieces: str = PIECES
    mix_power: float = 1.0
    has_start: bool = False
    max_length: int = 2048


@dataclass(frozen=True)
class Member:
    """One model and how it is made.

    `worlds` gives their shares of the training data, `mix_power` sharpens the share of the well-resourced languages.
    A batch holds texts of similar length, `batch_tokens` tokens at most, its padding among them.
    """

    name: str
    role: str
    version: int
    tokenizer: str
    worlds: Mapping[str, float]
    width: int
    stages: tuple[Stage, ...]
    batch_tokens: int
    mix_power: float
    seed: int


@dataclass(frozen=True)
class NgramRecipe:
    """An n-gram folder over the tokens of a tokenizer, counted on rows of some worlds: prompt, completion, end."""

    name: str
    role: str
    version: int
    tokenizer: str
    worlds: Mapping[str, float]
    order: int
    num_rows: int
    mix_power: float
    seed: int


@dataclass(frozen=True)
class TrainedMember:
    """A drafter that `specbench train` makes of the member `start` for the family's target.

    `stages`: the settings of its trainings (see `training.spec`), without target, drafter and output; each goes on from
    the weights of the one before.
    """

    name: str
    role: str
    version: int
    tokenizer: str
    start: str
    stages: tuple[Mapping[str, Any], ...]


Recipe = Member | NgramRecipe | TrainedMember
