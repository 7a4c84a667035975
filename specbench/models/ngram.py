"""N-gram models. Their arrays are memory-mapped, so that only the parts that are read occupy memory."""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench.core import bounded
from specbench.core.digests import WHOLE, bytes_digest, file_digest, json_digest
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD, write_atomically
from specbench.core.registry import first_problem
from specbench.core.resumable_folder import replacing

Array = NDArray[Any]
MANIFEST = "ngram.json"
FORMAT = 1
SUFFIX = ".bin"
TRAIN = "train one with `specbench train ngram`"
Count = Annotated[int, Field(ge=1)]


class ArrayInfo(BaseModel):
    """The element type of an array, such as "<u4", and its number of elements."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Annotated[str, Field(pattern=r"^(\|u1|<u[248])$")]
    length: Annotated[int, Field(ge=0)]


class Manifest(BaseModel):
    """The content of `ngram.json`. `digest`: a hash of all other fields and the bytes of all arrays."""

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
    """Returns the identity of a tokenizer: 12 hex digits over its tokens and their ids (`get_vocab()`)."""
    pairs = sorted((token_id, token) for token, token_id in vocabulary.items())
    return json_digest(pairs)


def array_name(level: int, kind: str) -> str:
    return f"level{level}-{kind}"


def expected_lengths(manifest: Manifest) -> dict[str, int]:
    """Returns the length of each array of a model, by name."""
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
    """Returns the validated manifest. Raises ConfigError if it is missing or invalid, or if the files of the arrays do
    not have the stated sizes."""
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
    """Writes the manifest of a folder. `arrays`: element types and lengths by name."""
    listed = {name: {"dtype": dtype, "length": length} for name, (dtype, length) in sorted(arrays.items())}
    content = {"format": FORMAT, **fields, "arrays": listed}
    arrays_read = (bytes.fromhex(file_digest(folder / f"{name}{SUFFIX}", WHOLE)) for name in listed)
    content["digest"] = bytes_digest([json.dumps(content, sort_keys=True).encode(), *arrays_read])
    write_atomically(folder / MANIFEST, json.dumps(content, indent=2) + "\n")


def check_replaceable(output: Path) -> None:
    """Raises ConfigError for an output folder that holds anything but an n-gram model."""
    if output.is_dir():
        names = {path.name for path in output.iterdir()}
        foreign = sorted(
            name for name in names if name not in (MANIFEST, TRAINING_RECORD) and not name.endswith(SUFFIX)
        )
        if foreign or (names and MANIFEST not in names):
            example = (foreign or sorted(names))[0]
            raise ConfigError(f"{output}: is not an n-gram model (it holds {example}): give a new folder")
    elif output.exists() or output.is_symlink():
        raise ConfigError(f"{output}: is a file: give a new folder")


@contextmanager
def replacing_model(output: Path) -> Iterator[Path]:
    """Yields an empty folder, which replaces `output` when the block ends without an error. Raises ConfigError for an
    output that must not be replaced, that another process replaces, or that cannot be written."""
    check_replaceable(output)
    try:
        with replacing(output) as folder:
            yield folder
    except BlockingIOError as error:
        raise ConfigError(f"{output}: another process is replacing it: wait for it, or give another folder") from error
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror or error}: give another folder") from error


@dataclass(frozen=True)
class Span:
    """The continuations of a context: indices `start` to `end` (exclusive) of a level's ranked arrays."""

    level: int
    start: int
    end: int


class Level:
    """The memory-mapped arrays of one level, with memoryviews for fast reads of single numbers."""

    def __init__(self, folder: Path, manifest: Manifest, level: int) -> None:
        def mapped(kind: str) -> Array:
            name = array_name(level, kind)
            info = manifest.arrays.get(name)
            if info is None or info.length == 0:  # an empty array cannot be mapped
                return np.empty(0, dtype=np.uint8)
            return np.asarray(np.memmap(folder / f"{name}{SUFFIX}", dtype=info.dtype, mode="r"))

        self.ranked_tokens, self.ranked_counts = mapped("ranked_tokens"), mapped("ranked_counts")
        self.starts, self.tokens = mapped("starts").data, mapped("tokens").data
        self.best = self.ranked_tokens.data


class NgramModel:
    """An n-gram model: it gives the counted continuations of the longest suffix of a context that was seen in
    training."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.path = folder
        self.order = manifest.order
        self.vocab_size = manifest.vocab_size
        self.num_tokens = manifest.num_tokens
        self.num_ngrams = manifest.num_ngrams
        self.tokenizer_digest = manifest.tokenizer_digest
        self.digest = manifest.digest
        self._levels = [Level(folder, manifest, level) for level in range(1, manifest.order + 1)]
        for number, level in enumerate(self._levels[1:], start=2):
            if level.starts[0] != 0 or level.starts[-1] != manifest.num_ngrams[number - 1]:
                raise ConfigError(f"{folder}: the {number}-grams do not begin and end where they should: {TRAIN}")

    @classmethod
    def load(cls, path: str | Path) -> "NgramModel":
        """Returns the memory-mapped model of a folder. Raises ConfigError if the folder is no complete model."""
        folder = Path(path)
        return cls(folder, read_manifest(folder))

    @property
    def max_token_id(self) -> int:
        """Returns the largest token id that occurs."""
        return int(self._levels[0].ranked_tokens.max())

    def span(self, context: Sequence[int]) -> Span:
        """Returns the continuations of the longest seen suffix of a context. The empty suffix is always seen."""
        for length in range(min(self.order - 1, len(context)), 0, -1):
            index = self._index(context[len(context) - length :])
            if index is not None:
                starts = self._levels[length].starts
                start, end = starts[index], starts[index + 1]
                if start < end:
                    return Span(length + 1, start, end)
        return Span(1, 0, len(self._levels[0].ranked_tokens))

    def _index(self, ngram: Sequence[int]) -> int | None:
        """Returns the index of an n-gram at its level; None if it was not seen."""
        index = ngram[0]
        if not 0 <= index < self.vocab_size:
            return None
        for depth in range(1, len(ngram)):
            level = self._levels[depth]
            start, end = level.starts[index], level.starts[index + 1]
            index = bisect_left(level.tokens, ngram[depth], start, end)
            if index == end or level.tokens[index] != ngram[depth]:
                return None
        return index

    def best(self, context: Sequence[int]) -> int:
        """Returns the most frequent continuation; ties go to the smallest id."""
        return self.first(self.span(context))

    def first(self, span: Span) -> int:
        """Returns the first token of a span."""
        return int(self._levels[span.level - 1].best[span.start])

    def at(self, span: Span) -> tuple[Array, Array]:
        """Returns token ids and counts [n] of a span, the most frequent first, as views of the files."""
        level = self._levels[span.level - 1]
        return level.ranked_tokens[span.start : span.end], level.ranked_counts[span.start : span.end]

    def continuations(self, context: Sequence[int]) -> tuple[Array, Array]:
        """Returns token ids and counts [n] of the continuations of a context's longest seen suffix, the most frequent
        first. Normalized counts are the model's distribution: relative frequencies without smoothing."""
        return self.at(self.span(context))
