"""Counts an n-gram model of any order, in memory that does not grow with the corpus.

The key of a k-gram is one integer: the index of its first k − 1 tokens at level k − 1, times the vocabulary size, plus
its last token. Each level reads the tokens once, in chunks. The keys of a chunk are sorted into a run on disk, and the
runs are merged into the level. The index of each position's k-gram is the context of the next level.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specbench.core.errors import ConfigError
from specbench.models.array_folder import SUFFIX, Array
from specbench.models.corpus_models import NGRAM_FOLDER, NgramModel, array_name

MIN_BUFFER = 4096  # minimum entries of a run per read


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
        order = np.argsort(keys) if inverse else None
        ordered = np.sort(keys) if order is None else keys[order]
        starts = first_of_each(ordered)
        append(self.keys_path, ordered[starts])
        append(self.counts_path, np.diff(starts, append=len(ordered)).astype(np.uint32))
        self.ends.append(self.ends[-1] + len(starts))
        places = np.empty(len(keys) if inverse else 0, dtype=np.int32)
        if order is not None:
            places[order] = ranks_of_groups(starts, len(keys))
        return places

    def merge(self, num_buffered: int, index: bool) -> Iterator[tuple[Array, Array]]:
        """Yields all keys in order with their counts, in pieces of about `num_buffered` entries. With `index`, the rank
        of each entry's key among all keys is stored for `indices_of`."""
        num_runs = len(self.ends) - 1
        size = max(MIN_BUFFER, num_buffered // max(1, num_runs))
        buffers = [RunBuffer(self, number, size) for number in range(num_runs)]
        num_merged = 0
        with self.indices_path.open("r+b") as indices_file:
            while buffers := [buffer for buffer in buffers if buffer.fill()]:
                cut = min(buffer.keys[-1] for buffer in buffers)
                parts = [buffer.take(cut) for buffer in buffers]
                keys = np.concatenate([keys for _, keys, _ in parts])
                counts = np.concatenate([counts for _, _, counts in parts]).astype(np.int64)
                order = np.argsort(keys, kind="stable")
                ordered = keys[order]
                starts = first_of_each(ordered)
                if index:
                    ranks = np.empty(len(keys), dtype=np.int64)
                    ranks[order] = num_merged + ranks_of_groups(starts, len(keys))
                    for place, taken, _ in parts:
                        indices_file.seek(place * 8)
                        indices_file.write(ranks[: len(taken)].tobytes())
                        ranks = ranks[len(taken) :]
                num_merged += len(starts)
                yield ordered[starts], np.add.reduceat(counts[order], starts)

    def indices_of(self, number: int) -> Array:
        """Returns the rank of each key of a run among all keys, after a `merge` with `index`."""
        start, end = self.ends[number : number + 2]
        return np.fromfile(self.indices_path, dtype=np.int64, count=end - start, offset=start * 8)


class RunBuffer:
    """The entries of one run that are in memory."""

    def __init__(self, runs: SortedRuns, number: int, size: int) -> None:
        self.runs, self.size = runs, size
        self.place, self.end = runs.ends[number : number + 2]
        self.keys = np.empty(0, dtype=np.int64)
        self.counts = np.empty(0, dtype=np.uint32)

    def fill(self) -> bool:
        """Reads more entries if few are left. Returns whether there are any."""
        start = self.place + len(self.keys)
        missing = min(self.size - len(self.keys), self.end - start)
        if missing > 0 and len(self.keys) <= self.size // 2:
            keys = np.fromfile(self.runs.keys_path, dtype=np.int64, count=missing, offset=start * 8)
            counts = np.fromfile(self.runs.counts_path, dtype=np.uint32, count=missing, offset=start * 4)
            self.keys, self.counts = np.concatenate([self.keys, keys]), np.concatenate([self.counts, counts])
        return len(self.keys) > 0

    def take(self, cut: int) -> tuple[int, Array, Array]:
        """Removes and returns the entries up to and including a key: their offset in the files, keys and counts."""
        count = int(np.searchsorted(self.keys, cut, side="right"))
        taken = (self.place, self.keys[:count], self.counts[:count])
        self.keys, self.counts, self.place = self.keys[count:], self.counts[count:], self.place + count
        return taken


def first_of_each(ordered: Array) -> Array:
    """Returns the index of each value's first occurrence in a sorted array [n]."""
    if len(ordered) == 0:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])


def ranks_of_groups(starts: Array, length: int) -> Array:
    """Returns the group number of each of `length` positions. The groups begin at `starts`."""
    return np.repeat(np.arange(len(starts)), np.diff(starts, append=length))


def append(path: Path, array: Array) -> None:
    """Appends an array to a file."""
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
        """Returns element type and length of every array, by name."""
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
        contexts = keys // self.vocab_size
        tokens = keys - contexts * self.vocab_size
        self._write_starts(int(contexts[-1]) + 1, contexts)
        order = most_frequent_first(contexts, counts)
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


def most_frequent_first(contexts: Array, counts: Array) -> Array:
    """Returns the order [n] that sorts each context's entries by descending count, with ties in the old order."""
    most = int(counts.max())
    groups = ranks_of_groups(first_of_each(contexts), len(contexts))
    return np.argsort(groups * (most + 1) + (most - counts), kind="stable")


CHUNK_TOKENS = 1 << 21
NOTHING = -1  # marks the end of a document and a missing context
CountingProgress = Callable[[str, int], None]
Document = Sequence[int] | Array


def build_ngrams(
    documents: Iterable[Document],
    order: int,
    vocab_size: int,
    output: Path,
    tokenizer_digest: str,
    progress: CountingProgress | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> NgramModel:
    """Counts the n-grams up to `order` inside documents (token ids each), and writes them into the folder `output`.

    `progress` is called with the current action and its number of tokens. A model at `output` is replaced when the new
    one is complete. Raises ConfigError if `output` is anything else, for ids outside the vocabulary, and for a corpus
    without tokens.
    """
    with NGRAM_FOLDER.replacing(Path(output)) as folder:
        count_into(folder, documents, order, vocab_size, tokenizer_digest, progress, chunk_tokens)
    return NgramModel.load(output)


def count_into(
    folder: Path,
    documents: Iterable[Document],
    order: int,
    vocab_size: int,
    tokenizer_digest: str,
    progress: CountingProgress | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> None:
    """Builds a model as `build_ngrams` does, but into an empty folder."""
    if order < 1:
        raise ConfigError(f"order = {order}: an n-gram has at least one token: give 1 or more (2 counts bigrams)")
    say: CountingProgress = progress or (lambda doing, num_tokens: None)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        counter = NgramCounter(folder, Path(scratch), vocab_size, chunk_tokens, say)
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

    def chunk() -> Array:
        tokens = np.concatenate(parts)
        ids = tokens[tokens != NOTHING]
        if len(ids) + len(parts) // 2 != len(tokens) or ids.min() < 0 or ids.max() >= vocab_size:
            wrong = next(int(i) for part in parts[::2] for i in part if not 0 <= i < vocab_size)
            raise ConfigError(
                f"token id {wrong} is outside the vocabulary of {vocab_size} tokens: check documents and tokenizer"
            )
        return tokens

    for document in documents:
        if len(document) == 0:
            continue
        parts += (np.asarray(document, dtype=np.int64), end)
        size += len(document)
        num_tokens += len(document)
        if size >= chunk_tokens:
            yield chunk()
            progress("reading", num_tokens)
            parts, size = [], 0
    if parts:
        yield chunk()
    progress("reading", num_tokens)
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
        """Stores the documents. Returns the count of each token: [vocab_size]."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        self._path("tokens").write_bytes(b"")
        for chunk in token_chunks(documents, self.vocab_size, self.chunk_tokens, self.say):
            counts += np.bincount(chunk[chunk != NOTHING], minlength=self.vocab_size)
            append(self._path("tokens"), chunk.astype(np.int32))
        return counts

    def write_unigrams(self, counts: Array) -> LevelWriter:
        """Writes level 1: the tokens that occur."""
        seen = np.flatnonzero(counts)
        writer = LevelWriter(self.folder, 1, self.vocab_size, self._dtypes(counts, ("ranked_tokens", "ranked_counts")))
        writer.write(iter([(seen, counts[seen])]), 0)
        return writer

    def write_level(self, level: int, num_previous: int, *, is_last: bool, counts: Array) -> LevelWriter:
        """Writes level k ≥ 2, and the contexts of the next level unless it is the last."""
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
        """Writes the index of the k-gram that ends at each position."""
        self._path("contexts").write_bytes(b"")
        for number, places in enumerate(self._chunks("places", np.int32)):
            indices = np.append(runs.indices_of(number), NOTHING)  # a place of NOTHING = -1 selects this last item
            append(self._path("contexts"), indices[places])

    def _chunks(self, name: str, dtype: type[np.signedinteger]) -> Iterable[Array]:
        num_bytes = np.dtype(dtype).itemsize
        for offset in range(0, self._path(name).stat().st_size, self.chunk_tokens * num_bytes):
            yield np.fromfile(self._path(name), dtype=dtype, count=self.chunk_tokens, offset=offset)

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
