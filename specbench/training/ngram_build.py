"""Counts an n-gram model of any order, in memory that does not grow with the corpus.

The key of a k-gram is one integer: the index of its first k − 1 tokens at level k − 1, times the vocabulary size, plus
its last token. Each level reads the tokens once, in chunks. The keys of a chunk are sorted into a run on disk, and the
runs are merged into the level. The index of each position's k-gram is the context of the next level.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from specbench.core.errors import ConfigError
from specbench.models.corpus_models import NGRAM_FOLDER, NgramModel, array_name
from specbench.models.mmap_store import SUFFIX, Array

MIN_BUFFER = 4096  # minimum entries of a run that are in memory


class SortedRuns:
    """Runs of (key, count) in two files. Each run is sorted by key and has no duplicates."""

    def __init__(self, folder: Path) -> None:
        self.keys_path, self.counts_path = folder / "run-keys", folder / "run-counts"
        self.indices_path = folder / "run-indices"
        self.ends: list[int] = [0]
        for path in (self.keys_path, self.counts_path, self.indices_path):
            path.write_bytes(b"")

    def add(self, keys: Array, inverse: bool) -> Array:
        """Appends a run of keys [n]. Returns the index of each key in the run, [n] (empty unless `inverse`)."""
        unique, counts = np.unique(keys, return_counts=True)
        append(self.keys_path, unique)
        append(self.counts_path, counts.astype(np.uint32))
        self.ends.append(self.ends[-1] + len(unique))
        return np.searchsorted(unique, keys).astype(np.int32) if inverse else np.empty(0, dtype=np.int32)

    def merge(self, num_buffered: int, index: bool) -> Iterator[tuple[Array, Array]]:
        """Yields all keys in order with their counts, in pieces of about `num_buffered` entries. With `index`, the rank
        of each entry's key among all keys is stored for `indices_of`."""
        runs = [range(*ends) for ends in pairwise(self.ends) if ends[0] < ends[1]]
        size = max(MIN_BUFFER, num_buffered // max(1, len(self.ends) - 1))
        num_merged = 0
        with self.indices_path.open("r+b") as indices_file:
            while runs:
                buffers = [read(self.keys_path, np.int64, run[:size]) for run in runs]
                cut = min(keys[-1] for keys in buffers)
                lengths = [int(np.searchsorted(keys, cut, side="right")) for keys in buffers]
                taken = [run[:length] for run, length in zip(runs, lengths, strict=True)]
                keys = np.concatenate([keys[:length] for keys, length in zip(buffers, lengths, strict=True)])
                counts = np.concatenate([read(self.counts_path, np.uint32, part) for part in taken])
                unique, ranks = np.unique(keys, return_inverse=True)
                if index:
                    for part, own in zip(taken, np.split(ranks, np.cumsum(lengths)[:-1]), strict=True):
                        indices_file.seek(part.start * 8)
                        indices_file.write((num_merged + own).astype(np.int64).tobytes())
                num_merged += len(unique)
                yield unique, np.bincount(ranks, counts).astype(np.int64)
                runs = [run[length:] for run, length in zip(runs, lengths, strict=True) if length < len(run)]

    def indices_of(self, number: int) -> Array:
        """Returns the rank of each key of a run among all keys, after a `merge` with `index`."""
        return read(self.indices_path, np.int64, range(*self.ends[number : number + 2]))


def read(path: Path, dtype: type[np.generic], part: range) -> Array:
    return np.fromfile(path, dtype=dtype, count=len(part), offset=part.start * np.dtype(dtype).itemsize)


def append(path: Path, array: Array) -> None:
    with path.open("ab") as file:
        file.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")


BLOCK = 1 << 20  # starts per write


class LevelWriter:
    """Writes the arrays of one level, context by context. `dtypes`: the element type of each stored array."""

    def __init__(self, folder: Path, level: int, vocab_size: int, dtypes: Mapping[str, np.dtype[np.unsignedinteger]]):
        self.paths = {kind: folder / f"{array_name(level, kind)}{SUFFIX}" for kind in dtypes}
        self.level, self.vocab_size, self.dtypes = level, vocab_size, dtypes
        self.num_ngrams = self.num_contexts = 0
        for path in self.paths.values():
            path.write_bytes(b"")

    def arrays(self) -> dict[str, tuple[str, int]]:
        lengths = {kind: self.num_contexts if kind == "starts" else self.num_ngrams for kind in self.paths}
        return {array_name(self.level, kind): (self.dtypes[kind].str, lengths[kind]) for kind in self.paths}

    def write(self, merged: Iterator[tuple[Array, Array]], num_contexts: int) -> None:
        """Writes the k-grams of the level, given as pieces of (keys, counts) in order. A key is context · vocab_size +
        token."""
        keys = counts = np.empty(0, dtype=np.int64)
        for more_keys, more_counts in merged:
            keys, counts = np.concatenate([keys, more_keys]), np.concatenate([counts, more_counts])
            # The last context may continue in the next piece.
            complete = int(np.searchsorted(keys, keys[-1] // self.vocab_size * self.vocab_size))
            self._write_contexts(keys[:complete], counts[:complete])
            keys, counts = keys[complete:], counts[complete:]
        self._write_contexts(keys, counts)
        self._write_starts(num_contexts + 1, np.empty(0, dtype=np.int64))

    def _write_contexts(self, keys: Array, counts: Array) -> None:
        if len(keys) == 0:
            return
        contexts, tokens = np.divmod(keys, self.vocab_size)
        self._write_starts(int(contexts[-1]) + 1, contexts)
        order = np.lexsort((-counts, contexts))  # the most frequent first, with ties in the old order
        self._append("tokens", tokens)
        self._append("ranked_tokens", tokens[order])
        self._append("ranked_counts", counts[order])
        self.num_ngrams += len(keys)

    def _write_starts(self, end: int, contexts: Array) -> None:
        """Writes the starts of the contexts up to `end`, given the sorted contexts of the next k-grams."""
        for low in range(self.num_contexts, end, BLOCK):
            block = np.arange(low, min(low + BLOCK, end))
            self._append("starts", self.num_ngrams + np.searchsorted(contexts, block))
        self.num_contexts = max(self.num_contexts, end)

    def _append(self, kind: str, values: Array) -> None:
        if kind in self.paths:
            append(self.paths[kind], values.astype(self.dtypes[kind]))


CHUNK_TOKENS = 1 << 21
NOTHING = -1  # marks the end of a document and a missing context
CountingProgress = Callable[[str, int], None]
Document = Sequence[int] | Array


def build_ngrams(
    documents: Iterable[Document], order: int, vocab_size: int, output: Path, tokenizer_digest: str,
    chunk_tokens: int = CHUNK_TOKENS,
) -> NgramModel:  # fmt: skip
    """Counts the n-grams up to `order` inside documents (token ids each), and writes them into the folder `output`.

    A model at `output` is replaced when the new one is complete. Raises ConfigError if `output` is anything else, for
    ids outside the vocabulary, and for a corpus without tokens.
    """
    with NGRAM_FOLDER.replacing(Path(output)) as folder:
        count_into(folder, documents, order, vocab_size, tokenizer_digest, chunk_tokens=chunk_tokens)
    return NgramModel.load(output)


def ignore_progress(doing: str, num_tokens: int) -> None:
    """Ignores the progress of a build."""


def count_into(
    folder: Path, documents: Iterable[Document], order: int, vocab_size: int, tokenizer_digest: str,
    progress: CountingProgress = ignore_progress, chunk_tokens: int = CHUNK_TOKENS,
) -> None:  # fmt: skip
    """Builds a model as `build_ngrams` does, but into an empty folder. `progress` is called with the current action and
    its number of tokens."""
    if order < 1:
        raise ConfigError(f"order = {order}: an n-gram has at least one token: give 1 or more (2 counts bigrams)")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        counter = NgramCounter(folder, Path(scratch), vocab_size, chunk_tokens, progress)
        counts = counter.write_tokens(documents)
        writers = [counter.write_unigrams(counts)]
        for level in range(2, order + 1):
            writers.append(counter.write_level(level, writers[-1].num_ngrams, is_last=level == order, counts=counts))
        fields = {"order": order, "vocab_size": vocab_size, "num_tokens": int(counts.sum()),
                  "num_ngrams": [writer.num_ngrams for writer in writers],
                  "tokenizer_digest": tokenizer_digest}  # fmt: skip
        NGRAM_FOLDER.write(folder, fields, {name: a for writer in writers for name, a in writer.arrays().items()})


def token_chunks(
    documents: Iterable[Document], vocab_size: int, chunk_tokens: int, progress: CountingProgress
) -> Iterator[Array]:
    """Yields the documents' tokens in chunks of about `chunk_tokens`, with NOTHING after each document. Empty documents
    are skipped. Raises ConfigError for ids outside the vocabulary and for a corpus without tokens."""
    end = np.array([NOTHING])
    parts: list[Array] = []
    size = num_tokens = 0
    for document in chain(documents, [None]):
        if document is not None and len(document):
            parts += (np.asarray(document, dtype=np.int64), end)
            size += len(document)
        if parts and (document is None or size >= chunk_tokens):
            tokens = np.concatenate(parts)
            ids = tokens[tokens != NOTHING]
            if len(ids) != size or ids.min() < 0 or ids.max() >= vocab_size:
                wrong = next(int(i) for part in parts[::2] for i in part if not 0 <= i < vocab_size)
                raise ConfigError(
                    f"token id {wrong} is outside the vocabulary of {vocab_size} tokens: check documents and tokenizer"
                )
            yield tokens
            num_tokens += size
            progress("reading", num_tokens)
            parts, size = [], 0
    if num_tokens == 0:
        raise ConfigError("the corpus has no tokens: give files with text")


@dataclass
class NgramCounter:
    """The files of one build: the tokens as int32 with a mark after each document, and the context of each position."""

    folder: Path
    scratch: Path
    vocab_size: int
    chunk_tokens: int
    say: CountingProgress

    def write_tokens(self, documents: Iterable[Document]) -> Array:
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        self._path("tokens").write_bytes(b"")
        for chunk in token_chunks(documents, self.vocab_size, self.chunk_tokens, self.say):
            counts += np.bincount(chunk[chunk != NOTHING], minlength=self.vocab_size)
            append(self._path("tokens"), chunk.astype(np.int32))
        return counts

    def write_unigrams(self, counts: Array) -> LevelWriter:
        seen = np.flatnonzero(counts)
        writer = LevelWriter(self.folder, 1, self.vocab_size, self._dtypes(counts, ("ranked_tokens", "ranked_counts")))
        writer.write(iter([(seen, counts[seen])]), 0)
        return writer

    def write_level(self, level: int, num_previous: int, *, is_last: bool, counts: Array) -> LevelWriter:
        runs = self._count(level, inverse=not is_last)
        kinds = ("starts", "ranked_tokens", "ranked_counts") + (() if is_last else ("tokens",))
        writer = LevelWriter(self.folder, level, self.vocab_size, self._dtypes(counts, kinds))
        writer.write(runs.merge(self.chunk_tokens, index=not is_last), self.vocab_size if level == 2 else num_previous)
        if not is_last:
            self._write_contexts(runs)
        return writer

    def _count(self, level: int, inverse: bool) -> SortedRuns:
        runs = SortedRuns(self.scratch)
        self._path("places").write_bytes(b"")
        before, num_tokens = np.array([NOTHING]), 0
        contexts_of = ("tokens", np.int32) if level == 2 else ("contexts", np.int64)
        for tokens, ending in zip(self._chunks("tokens", np.int32), self._chunks(*contexts_of), strict=True):
            contexts = np.concatenate([before, ending[:-1]]).astype(np.int64)
            before = ending[-1:]
            counted = (contexts != NOTHING) & (tokens != NOTHING)
            places = runs.add(contexts[counted] * self.vocab_size + tokens[counted], inverse)
            if inverse:
                of_positions = np.full(len(tokens), NOTHING, dtype=np.int32)
                of_positions[counted] = places
                append(self._path("places"), of_positions)
            num_tokens += int((tokens != NOTHING).sum())
            self.say(f"counting {level}-grams", num_tokens)
        return runs

    def _write_contexts(self, runs: SortedRuns) -> None:
        self._path("contexts").write_bytes(b"")
        for number, places in enumerate(self._chunks("places", np.int32)):
            indices = np.append(runs.indices_of(number), NOTHING)  # a place of NOTHING = -1 selects this last item
            append(self._path("contexts"), indices[places])

    def _chunks(self, name: str, dtype: type[np.signedinteger]) -> Iterable[Array]:
        length = self._path(name).stat().st_size // np.dtype(dtype).itemsize
        for start in range(0, length, self.chunk_tokens):
            yield read(self._path(name), dtype, range(start, start + self.chunk_tokens))

    def _path(self, name: str) -> Path:
        return self.scratch / name

    def _dtypes(self, counts: Array, kinds: Sequence[str]) -> dict[str, np.dtype[np.unsignedinteger]]:
        """Returns the smallest element types that fit the arrays of any level."""
        token, count = smallest(self.vocab_size - 1), smallest(int(counts.max()))
        types = {"starts": smallest(int(counts.sum())), "ranked_tokens": token, "ranked_counts": count, "tokens": token}
        return {kind: types[kind] for kind in kinds}


def smallest(maximum: int) -> np.dtype[np.unsignedinteger]:
    """Returns the smallest little-endian unsigned type for numbers up to `maximum`."""
    return np.min_scalar_type(maximum).newbyteorder("<")
