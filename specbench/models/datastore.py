"""Datastores: the tokens of a corpus with their suffix array, in folders of memory-mapped arrays."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from specbench.models.array_folder import Array, ArrayModel, FolderKind, Manifest


class DatastoreManifest(Manifest):
    """The content of `retrieval.json`. The array `tokens` holds all documents, each followed by `vocab_size`; the array
    `suffixes` holds the positions of the tokens, sorted by the texts that begin there."""

    num_documents: int

    def contradiction(self) -> str | None:
        lengths = {"tokens": self.num_tokens + self.num_documents, "suffixes": self.num_tokens}
        return None if self.lengths == lengths else "arrays: their lengths contradict num_tokens and num_documents"


DATASTORE_FOLDER = FolderKind("a", "datastore", "retrieval", DatastoreManifest)


class Datastore(ArrayModel):
    """A corpus that is searched for texts by binary search."""

    kind = DATASTORE_FOLDER

    def __init__(self, folder: Path, manifest: DatastoreManifest) -> None:
        super().__init__(folder, manifest)
        self.tokens, self.suffixes = manifest.mapped(folder, "tokens"), manifest.mapped(folder, "suffixes")
        self._tokens, self._suffixes = self.tokens.data, self.suffixes.data  # faster reads of single numbers

    @property
    def max_token_id(self) -> int:
        return int(self._tokens[self._suffixes[-1]])

    def occurrences(self, text: Sequence[int]) -> tuple[int, int]:
        """Returns the range (end exclusive) of `suffixes` with the occurrences of a text that are followed by a
        token."""
        wanted = list(text)

        def beginning(place: int) -> list[int]:
            return self._tokens[place : place + len(wanted) + 1].tolist()

        start = bisect_left(self._suffixes, wanted, key=beginning)
        return start, bisect_left(self._suffixes, [*wanted, self.vocab_size], lo=start, key=beginning)

    def longest_match(self, ids: Sequence[int], max_match: int, min_match: int) -> tuple[int, int, int]:
        """Returns the length of the longest suffix of `ids`, up to `max_match` tokens, that occurs with a token after
        it, and the range of its `occurrences`. All are 0 if it has fewer than `min_match` tokens."""
        found = (0, 0, 0)
        low, high = min_match, min(max_match, len(ids))
        while low <= high:  # a suffix of a text that occurs occurs too
            length = (low + high) // 2
            start, end = self.occurrences(ids[len(ids) - length :])
            if start < end:
                found, low = (length, start, end), length + 1
            else:
                high = length - 1
        return found

    def continuations(self, ids: Sequence[int], max_match: int, min_match: int, depth: int, most: int) -> Array:
        """Returns the `depth` tokens after each occurrence of the longest match, in sorted order: [n, depth]. If there
        are more than `most` occurrences, an evenly spaced sample is used. After the end of a document, the values are
        arbitrary.
        """
        length, start, end = self.longest_match(ids, max_match, min_match)
        places = self.suffixes[start : end : -(-(end - start) // most) or 1].astype(np.int64)
        return self.tokens.take(places[:, None] + np.arange(length, length + depth), mode="clip")


def most_frequent_tree(
    rows: Array, vocab_size: int, end_ids: Collection[int], num_nodes: int
) -> tuple[list[int], list[int]]:
    """Returns the tokens and the parents (−1: none) of the most frequent nodes of a trie, at most `num_nodes`.

    `rows` [n, depth] are the sorted texts of the trie. A text ends before a number that is not a token, and after a
    token of `end_ids`. Nodes of equal frequency are ordered by depth, then by text, so that parents come first.
    """
    if rows.size == 0:
        return [], []
    inside = rows < vocab_size
    inside[:, 1:] &= ~np.isin(rows[:, :-1], list(end_ids))
    inside = np.logical_and.accumulate(inside, axis=1)
    # Whether a row is the first one that begins with the same tokens, by the number of these tokens.
    is_first = np.ones(rows.shape, dtype=np.bool_)
    is_first[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
    # All arrays below are ordered by depth, then by row. The rows of a node are consecutive.
    starts = np.flatnonzero(is_first.T)
    node_at = np.cumsum(is_first.T) - 1
    counts = np.diff(starts, append=is_first.size)
    candidates = np.flatnonzero(inside.T.ravel()[starts])
    kept = candidates[np.argsort(-counts[candidates], kind="stable")[:num_nodes]]
    index = {int(node): place for place, node in enumerate(kept)}
    above = starts[kept] - len(rows)
    parents = [index[int(node_at[place])] if place >= 0 else -1 for place in above]
    return rows.T.ravel()[starts[kept]].tolist(), parents
