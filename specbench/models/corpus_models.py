"""Models made of a corpus, in folders of memory-mapped arrays: n-gram models, and datastores, which hold the
corpus with its suffix array."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.models.mmap_store import Array, ArrayModel, Count, Manifest


class NgramManifest(Manifest):
    """The content of `ngram.json`."""

    order: Count
    num_ngrams: list[Annotated[int, Field(ge=0)]]

    def expected_lengths(self) -> dict[str, int]:
        lengths: dict[str, int] = {}
        for level, num_ngrams in enumerate(self.num_ngrams, start=1):
            lengths |= {array_name(level, kind): num_ngrams for kind in ("ranked_tokens", "ranked_counts")}
            if level > 1:
                num_contexts = self.vocab_size if level == 2 else self.num_ngrams[level - 2]
                lengths[array_name(level, "starts")] = num_contexts + 1
            if 1 < level < self.order:
                lengths[array_name(level, "tokens")] = num_ngrams
        return lengths


def array_name(level: int, kind: str) -> str:
    return f"level{level}-{kind}"


@dataclass(frozen=True)
class Span:
    """The continuations of a context: indices `start` to `end` (exclusive) of a level's ranked arrays."""

    level: int
    start: int
    end: int


class Level:
    """The memory-mapped arrays of one level, with memoryviews for fast reads of single numbers."""

    def __init__(self, folder: Path, manifest: NgramManifest, level: int) -> None:
        def mapped(kind: str) -> Array:
            return manifest.mapped(folder, array_name(level, kind))

        self.ranked_tokens, self.ranked_counts = mapped("ranked_tokens"), mapped("ranked_counts")
        self.starts, self.tokens = mapped("starts").data, mapped("tokens").data
        self.best = self.ranked_tokens.data


class NgramModel(ArrayModel):
    """An n-gram model: the counts of the tokens that followed the longest suffix of a context seen in training."""

    noun = "n-gram model"
    command = "ngram"
    manifest_type = NgramManifest

    def __init__(self, folder: Path, manifest: NgramManifest) -> None:
        super().__init__(folder, manifest)
        self.order = manifest.order
        self.num_ngrams = manifest.num_ngrams
        self._levels = [Level(folder, manifest, level) for level in range(1, manifest.order + 1)]
        for number, level in enumerate(self._levels[1:], start=2):
            if level.starts[0] != 0 or level.starts[-1] != manifest.num_ngrams[number - 1]:
                raise ConfigError(
                    f"{folder}: the index of the {number}-grams does not cover all of them: {self.remedy()}"
                )

    @property
    def max_token_id(self) -> int:
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
        return int(self._levels[span.level - 1].best[span.start])

    def at(self, span: Span) -> tuple[Array, Array]:
        """Returns the token ids and counts [n] of a span, the most frequent first, as views of the files."""
        level = self._levels[span.level - 1]
        return level.ranked_tokens[span.start : span.end], level.ranked_counts[span.start : span.end]

    def continuations(self, context: Sequence[int]) -> tuple[Array, Array]:
        """Returns the token ids and counts [n] after a context's longest seen suffix, the most frequent first. The
        normalized counts are the model's distribution: relative frequencies without smoothing."""
        return self.at(self.span(context))


class DatastoreManifest(Manifest):
    """The content of `retrieval.json`. The array `tokens` holds all documents, each followed by `vocab_size`; the array
    `suffixes` holds the positions of the tokens, sorted by the texts that begin there."""

    num_documents: int

    def expected_lengths(self) -> dict[str, int]:
        return {"tokens": self.num_tokens + self.num_documents, "suffixes": self.num_tokens}


class Datastore(ArrayModel):
    """A corpus that is searched for texts by binary search."""

    noun = "datastore"
    command = "retrieval"
    manifest_type = DatastoreManifest

    def __init__(self, folder: Path, manifest: DatastoreManifest) -> None:
        super().__init__(folder, manifest)
        self.tokens, self.suffixes = manifest.mapped(folder, "tokens"), manifest.mapped(folder, "suffixes")
        self._tokens, self._suffixes = self.tokens.data, self.suffixes.data  # faster reads of single numbers

    @property
    def max_token_id(self) -> int:
        return int(self._tokens[self._suffixes[-1]])

    def texts(self) -> Iterator[list[int]]:
        """Yields the tokens of each document."""
        start = 0
        for end in np.flatnonzero(self.tokens == self.vocab_size).tolist():
            yield self._tokens[start:end].tolist()
            start = end + 1

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
