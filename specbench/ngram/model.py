"""An n-gram model in use: its arrays are mapped, and only the parts that are looked up come into memory."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specbench.errors import ConfigError
from specbench.ngram.folder import SUFFIX, TRAIN, Array, Manifest, array_name, read_manifest


@dataclass(frozen=True)
class Span:
    """The continuations of a context: places `start` to `end` of a level's ranked arrays."""

    level: int
    start: int
    end: int


class Level:
    """The mapped arrays of one level (see folder.py), and the same memory for reading single numbers quickly."""

    def __init__(self, folder: Path, manifest: Manifest, level: int) -> None:
        def mapped(kind: str) -> Array:
            name = array_name(level, kind)
            info = manifest.arrays.get(name)
            if info is None or info.length == 0:  # nothing cannot be mapped
                return np.empty(0, dtype=np.uint8)
            return np.asarray(np.memmap(folder / f"{name}{SUFFIX}", dtype=info.dtype, mode="r"))

        self.ranked_tokens, self.ranked_counts = mapped("ranked_tokens"), mapped("ranked_counts")
        self.starts, self.tokens = mapped("starts").data, mapped("tokens").data
        self.best = self.ranked_tokens.data


class NgramModel:
    """Continuations of the longest suffix of a context that was seen, with their counts."""

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
        """Map a model. Raises ConfigError in one line when the folder is not one, or not complete."""
        folder = Path(path)
        return cls(folder, read_manifest(folder))

    @property
    def max_token_id(self) -> int:
        """The largest token id that occurs."""
        return int(self._levels[0].ranked_tokens.max())

    def span(self, context: Sequence[int]) -> Span:
        """Where the continuations of the longest seen suffix of a context are; at last those of the empty one."""
        for length in range(min(self.order - 1, len(context)), 0, -1):
            index = self._index(context[len(context) - length :])
            if index is not None:
                starts = self._levels[length].starts
                start, end = starts[index], starts[index + 1]
                if start < end:
                    return Span(length + 1, start, end)
        return Span(1, 0, len(self._levels[0].ranked_tokens))

    def _index(self, ngram: Sequence[int]) -> int | None:
        """The number of an n-gram at its level; None when it was not seen."""
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
        """The most frequent continuation; of equally frequent ones that with the smallest id."""
        return self.first(self.span(context))

    def first(self, span: Span) -> int:
        """The first token of a span."""
        return int(self._levels[span.level - 1].best[span.start])

    def at(self, span: Span) -> tuple[Array, Array]:
        """Token ids and counts [n] of a span, the most frequent first: views of the files."""
        level = self._levels[span.level - 1]
        return level.ranked_tokens[span.start : span.end], level.ranked_counts[span.start : span.end]

    def continuations(self, context: Sequence[int]) -> tuple[Array, Array]:
        """Token ids and counts [n] of what followed the longest seen suffix of a context, the most frequent first.

        Counts over their sum are a distribution: relative frequencies, without smoothing.
        """
        return self.at(self.span(context))
