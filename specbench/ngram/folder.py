"""The folder of an n-gram model: `ngram.json` beside flat little-endian arrays that map into memory as they are, and
the record of its making where a command made it.

Level k holds the k-grams, grouped by their context (their first k − 1 tokens). A context is a number: a token id at
level 2, the index of a (k − 1)-gram at level k. Arrays of level k:
- `starts` [num_contexts + 1]: the k-grams of context c are at starts[c] to starts[c + 1]; level 1 has no such array;
- `ranked_tokens`, `ranked_counts` [num_ngrams]: last tokens and counts, the most frequent first within a context;
- `tokens` [num_ngrams]: last tokens, the smallest id first within a context, which numbers the k-grams; absent at the
  highest level, where nothing needs the numbers, and at level 1, where the id is the number.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench import bounded
from specbench.errors import ConfigError
from specbench.files import TRAINING_RECORD, write_atomically
from specbench.registry import first_problem

Array = NDArray[Any]
MANIFEST = "ngram.json"
FORMAT = 1
SUFFIX = ".bin"
TRAIN = "train one with `specbench train ngram`"
Count = Annotated[int, Field(ge=1)]


class ArrayInfo(BaseModel):
    """The type of an array's elements, such as "<u4", and how many there are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Annotated[str, Field(pattern=r"^(\|u1|<u[248])$")]
    length: Annotated[int, Field(ge=0)]


class Manifest(BaseModel):
    """What `ngram.json` says. `digest`: over everything else in it and the bytes of all arrays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    order: Count
    vocab_size: Count
    num_tokens: Count
    num_ngrams: list[Annotated[int, Field(ge=0)]]
    tokenizer_digest: str
    arrays: dict[str, ArrayInfo]
    digest: str


def vocabulary_digest(vocabulary: Mapping[str, int]) -> str:
    """The identity of a tokenizer: 12 hex digits over its tokens and their ids (`get_vocab()`)."""
    pairs = sorted((token_id, token) for token, token_id in vocabulary.items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:12]


def array_name(level: int, kind: str) -> str:
    return f"level{level}-{kind}"


def expected_lengths(manifest: Manifest) -> dict[str, int]:
    """The arrays that a model of these sizes has, and their lengths."""
    lengths: dict[str, int] = {}
    for level, num_ngrams in enumerate(manifest.num_ngrams, start=1):
        lengths |= {array_name(level, kind): num_ngrams for kind in ("ranked_tokens", "ranked_counts")}
        if level > 1:
            num_contexts = manifest.vocab_size if level == 2 else manifest.num_ngrams[level - 2]
            lengths[array_name(level, "starts")] = num_contexts + 1
            if level < manifest.order:
                lengths[array_name(level, "tokens")] = num_ngrams
    return lengths


def read_manifest(folder: Path) -> Manifest:
    """The checked manifest of a model whose arrays have the sizes it says; otherwise a ConfigError in one line."""
    path = folder / MANIFEST
    if not path.exists():
        raise ConfigError(f"{folder}: no n-gram model ({MANIFEST} is missing): {TRAIN}")
    data = bounded.read_mapping(path, TRAIN)
    version = data.get("format")
    if version != FORMAT:
        raise ConfigError(f"{path}: format = {version!r}: this version of specbench reads format {FORMAT}: {TRAIN}")
    try:
        manifest = Manifest.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error, Manifest, remedy='')}: {TRAIN}") from error
    if len(manifest.num_ngrams) != manifest.order:
        raise ConfigError(f"{path}: num_ngrams: {len(manifest.num_ngrams)} levels, order {manifest.order}: {TRAIN}")
    lengths = {name: info.length for name, info in manifest.arrays.items()}
    if lengths != expected_lengths(manifest):
        raise ConfigError(f"{path}: arrays: their lengths contradict num_ngrams: {TRAIN}")
    for name, info in manifest.arrays.items():
        check_size(folder / f"{name}{SUFFIX}", info.length * np.dtype(info.dtype).itemsize)
    return manifest


def check_size(path: Path, num_bytes: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise ConfigError(f"{path}: the n-gram model lacks this file: {TRAIN}") from error
    if found != num_bytes:
        raise ConfigError(f"{path}: {found} bytes where {MANIFEST} says {num_bytes}: {TRAIN}")


def write_manifest(folder: Path, fields: Mapping[str, Any], arrays: Mapping[str, tuple[str, int]]) -> None:
    """Describe the arrays of a folder, given their element types and lengths by name."""
    listed = {name: {"dtype": dtype, "length": length} for name, (dtype, length) in sorted(arrays.items())}
    content = {"format": FORMAT, **fields, "arrays": listed}
    state = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name in listed:
        with (folder / f"{name}{SUFFIX}").open("rb") as file:
            state.update(hashlib.file_digest(file, "sha256").digest())
    content["digest"] = state.hexdigest()[:12]
    write_atomically(folder / MANIFEST, json.dumps(content, indent=2) + "\n")


def check_replaceable(output: Path) -> None:
    """An output folder must be new, empty, or hold an n-gram model and nothing else; otherwise a ConfigError."""
    if output.is_dir():
        names = {path.name for path in output.iterdir()}
        foreign = sorted(
            name for name in names if name not in (MANIFEST, TRAINING_RECORD) and not name.endswith(SUFFIX)
        )
        if foreign or (names and MANIFEST not in names):
            example = (foreign or sorted(names))[0]
            raise ConfigError(f"{output}: is no n-gram model (it holds {example}): give a new folder")
    elif output.exists() or output.is_symlink():
        raise ConfigError(f"{output}: is a file: give a new folder")


@contextmanager
def replacing(output: Path) -> Iterator[Path]:
    """A folder to write into, beside `output`, that takes its place when the block is through and vanishes when it
    fails. Raises ConfigError for an output that must not be replaced or cannot be written."""
    check_replaceable(output)
    output = output.absolute()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", suffix=".partial", dir=output.parent) as scratch:
            partial = Path(scratch) / "new"
            partial.mkdir()
            yield partial
            if output.is_dir():
                os.replace(output, Path(scratch) / "old")
            os.replace(partial, output)
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror or error}: give another folder") from error
