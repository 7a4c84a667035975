"""Writing one level of an n-gram model from its merged counts."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from specbench.ngram.folder import SUFFIX, Array, array_name
from specbench.ngram.runs import append, first_of_each, ranks_of_groups

BLOCK = 1 << 20  # starts that are written at once


class LevelWriter:
    """The arrays of one level, appended context by context. `dtypes`: the element type of each array that is kept."""

    def __init__(self, folder: Path, level: int, vocab_size: int, dtypes: Mapping[str, np.dtype[np.unsignedinteger]]):
        self.paths = {kind: folder / f"{array_name(level, kind)}{SUFFIX}" for kind in dtypes}
        self.level, self.vocab_size, self.dtypes = level, vocab_size, dtypes
        self.num_ngrams = self.num_contexts = 0
        for path in self.paths.values():
            path.write_bytes(b"")

    def arrays(self) -> dict[str, tuple[str, int]]:
        """Element type and length of every array, by name."""
        lengths = {kind: self.num_contexts if kind == "starts" else self.num_ngrams for kind in self.paths}
        return {array_name(self.level, kind): (self.dtypes[kind].str, lengths[kind]) for kind in self.paths}

    def write(self, merged: Iterator[tuple[Array, Array]], num_contexts: int) -> None:
        """All k-grams of the level: pieces of (keys, counts) in order, where key = context · vocab_size + token."""
        keys = counts = np.empty(0, dtype=np.int64)
        for more_keys, more_counts in merged:
            keys, counts = np.concatenate([keys, more_keys]), np.concatenate([counts, more_counts])
            # The last context may go on in the next piece.
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
        """The starts of the contexts up to `end`, given the sorted contexts of the k-grams that come next."""
        for low in range(self.num_contexts, end, BLOCK):
            block = np.arange(low, min(low + BLOCK, end))
            self._append("starts", self.num_ngrams + np.searchsorted(contexts, block))
        self.num_contexts = max(self.num_contexts, end)

    def _append(self, kind: str, values: Array) -> None:
        if kind in self.paths:
            append(self.paths[kind], values.astype(self.dtypes[kind]))


def most_frequent_first(contexts: Array, counts: Array) -> Array:
    """The order [n] that sorts each context's entries by falling count and keeps the order of ties."""
    most = int(counts.max())
    groups = ranks_of_groups(first_of_each(contexts), len(contexts))
    return np.argsort(groups * (most + 1) + (most - counts), kind="stable")
