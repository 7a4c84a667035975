"""The members of the embedded family: their recipes, their files, and the drafter of each bridge.

A later version may add members. It never replaces a member under the same version number.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, nearest

# Vowel signs (\p{M}) stay with their letters; without them Bengali, Telugu and Thai words would be split. A digit is a
# separate token in both tokenizers: a drafter with one token for 14 could hardly write it in the shared tokens.
# Spaces are merged, except for the one before a word: the indentation of code.
PIECES = r" ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s"
PIECES_WITH_NEWLINES = r" ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s+(?!\S)|\s"


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
    pieces: str = PIECES
    mix_power: float = 1.0
    has_start: bool = False
    max_length: int = 2048


@dataclass(frozen=True)
class Member:
    """One model and how it is built.

    `worlds` gives their shares of the training data; `mix_power` increases the share of the well-resourced languages. A
    batch holds texts of similar length with at most `batch_tokens` tokens, including padding.
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
    """A drafter that `specbench train` builds from the member `start` for the family's target.

    `stages`: the settings of its trainings (see `training.spec`), without target, drafter and output; each starts from
    the weights of the one before.
    """

    name: str
    role: str
    version: int
    tokenizer: str
    start: str
    stages: tuple[Mapping[str, Any], ...]


Recipe = Member | NgramRecipe | TrainedMember


# The share of each kind of task in the training texts (tasks with longer texts take more of the tokens).
TASKS = {
    "mgsm": 0.16, "mcot": 0.04, "msvamp": 0.02, "gsm8k": 0.01, "csqa": 0.025, "mmlu": 0.03, "humaneval": 0.03,
    "wmt": 0.22, "iwslt14": 0.02, "low_resource_mt": 0.05, "dolly": 0.11, "webtext": 0.04, "cnn_dm": 0.02,
    "mlsum": 0.02, "scrolls": 0.05, "story": 0.03, "spec_bench": 0.04, "mt_bench": 0.02,
    "multilingual_spec_bench": 0.015,
}  # fmt: skip


TOKENIZERS = {
    "shared": TokenizerRecipe(TASKS, vocab_size=2048, num_rows=12_000, seed=0),
    "other": TokenizerRecipe(
        TASKS,
        vocab_size=1536,
        num_rows=12_000,
        seed=7,
        pieces=PIECES_WITH_NEWLINES,
        mix_power=2.0,
        has_start=True,
    ),
    "bytes": TokenizerRecipe(TASKS, vocab_size=258, num_rows=200, seed=0, max_length=8192),
}

# P1 (App. B) tries 1e-4, 5e-5 and 2e-5 on drafters of 0.5 billion parameters and more; this one has 172,224.
DISTILLATION = {"num_steps": 800, "learning_rate": [3e-2, 1e-2, 3e-3], "gradient_accumulation": 1, "max_new_tokens": 64}

MEMBERS: tuple[Recipe, ...] = (
    Member(
        name="target",
        role="target",
        version=3,
        tokenizer="shared",
        worlds={**TASKS, "drill": 0.05},
        width=128,
        stages=(
            Stage(3, 4800, 2e-2, 1e-2),
            Stage(6, 2300, 1e-2, 6e-3),
            Stage(12, 900, 6e-3, 3e-3),
            Stage(24, 410, 3e-3, 2e-4),
        ),
        batch_tokens=4096,
        mix_power=1.0,
        seed=1,
    ),
    Member(
        name="drafter",
        role="drafter",
        version=2,
        tokenizer="shared",
        worlds=TASKS,
        width=64,
        stages=(Stage(1, 3000, 2e-2, 1e-3),),
        batch_tokens=4096,
        mix_power=4.0,
        seed=2,
    ),
    Member(
        name="drafter-bpe",
        role="drafter",
        version=2,
        tokenizer="other",
        worlds=TASKS,
        width=64,
        stages=(Stage(1, 4000, 2e-2, 1e-3),),
        batch_tokens=4096,
        mix_power=2.0,
        seed=3,
    ),
    NgramRecipe(
        name="ngram",
        role="ngram",
        version=2,
        tokenizer="shared",
        worlds=TASKS,
        order=5,
        num_rows=8000,
        mix_power=1.0,
        seed=5,
    ),
    Member(
        name="drafter-bytes",
        role="drafter",
        version=3,
        tokenizer="bytes",
        worlds=TASKS,
        width=96,
        stages=(Stage(2, 1300, 2e-2, 1e-3),),
        batch_tokens=8192,
        mix_power=1.0,
        seed=4,
    ),
    TrainedMember(
        name="drafter-scdf",
        role="drafter",
        version=1,
        tokenizer="shared",
        start="drafter",
        stages=(
            {
                "kind": "scdf",
                "data": {"tasks": ["world:mgsm"], "limit": 256},
                "num_steps": 80,
                "learning_rate": 2e-3,
                "gradient_accumulation": 1,
                "generation_batch": 64,
                "log_every": 80,
                "max_new_tokens": 40,
                "scdf": {"prompts_per_language": 8},
            },
        ),
    ),
    TrainedMember(
        name="drafter-distill-task",
        role="drafter",
        version=1,
        tokenizer="shared",
        start="drafter",
        stages=({"kind": "distill", "data": {"tasks": ["world:wmt"], "limit": 256}, **DISTILLATION},),
    ),
    TrainedMember(
        name="drafter-distill-general",
        role="drafter",
        version=1,
        tokenizer="shared",
        start="drafter",
        stages=(
            {
                "kind": "distill",
                "data": {"tasks": ["world:webtext", "world:cnn_dm", "world:mlsum"], "limit": 512},
                **DISTILLATION,
                "distill": {"corpus": "general"},
            },
        ),
    ),
    TrainedMember(
        name="drafter-pretrain-finetune",
        role="drafter",
        version=1,
        tokenizer="shared",
        start="drafter",
        stages=(
            {
                "kind": "finetune",
                "data": {"tasks": ["world:wmt", "world:iwslt14"], "subsets": ["de-en"], "limit": 2048},
                "num_steps": 1000,
                "learning_rate": 3e-3,
                "finetune": {"stage": "pretrain", "batch_size": 16},
            },
            {
                "kind": "finetune",
                "data": {"tasks": ["world:wmt"], "subsets": ["de-en"], "limit": 512},
                "learning_rate": 2e-3,
                "max_new_tokens": 64,
            },
        ),
    ),
)


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
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(), files


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


def members() -> tuple[Recipe, ...]:
    """All declared members, targets before drafters."""
    return MEMBERS
