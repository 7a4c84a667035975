"""N-gram models, in folders of memory-mapped arrays."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.models.array_folder import Array, ArrayModel, Count, FolderKind, Manifest


class NgramManifest(Manifest):
    """The content of `ngram.json`."""

    order: Count
    num_ngrams: list[Annotated[int, Field(ge=0)]]

    def contradiction(self) -> str | None:
        if len(self.num_ngrams) != self.order:
            return f"num_ngrams: {len(self.num_ngrams)} levels, order {self.order}"
        return None if self.lengths == self.expected_lengths() else "arrays: their lengths contradict num_ngrams"

    def expected_lengths(self) -> dict[str, int]:
        """Returns the length of each array, by name, that the numbers of n-grams give."""
        lengths: dict[str, int] = {}
        for level, num_ngrams in enumerate(self.num_ngrams, start=1):
            lengths |= {array_name(level, kind): num_ngrams for kind in ("ranked_tokens", "ranked_counts")}
            if level > 1:
                num_contexts = self.vocab_size if level == 2 else self.num_ngrams[level - 2]
                lengths[array_name(level, "starts")] = num_contexts + 1
                if level < self.order:
                    lengths[array_name(level, "tokens")] = num_ngrams
        return lengths


NGRAM_FOLDER = FolderKind("an", "n-gram model", "ngram", NgramManifest)


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

    kind = NGRAM_FOLDER

    def __init__(self, folder: Path, manifest: NgramManifest) -> None:
        super().__init__(folder, manifest)
        self.order = manifest.order
        self.num_ngrams = manifest.num_ngrams
        self._levels = [Level(folder, manifest, level) for level in range(1, manifest.order + 1)]
        for number, level in enumerate(self._levels[1:], start=2):
            if level.starts[0] != 0 or level.starts[-1] != manifest.num_ngrams[number - 1]:
                raise ConfigError(
                    f"{folder}: the index of the {number}-grams does not cover all of them: {NGRAM_FOLDER.remedy}"
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
        """Returns the first token of a span."""
        return int(self._levels[span.level - 1].best[span.start])

    def at(self, span: Span) -> tuple[Array, Array]:
        """Returns the token ids and counts [n] of a span, the most frequent first, as views of the files."""
        level = self._levels[span.level - 1]
        return level.ranked_tokens[span.start : span.end], level.ranked_counts[span.start : span.end]

    def continuations(self, context: Sequence[int]) -> tuple[Array, Array]:
        """Returns the token ids and counts [n] after a context's longest seen suffix, the most frequent first. The
        normalized counts are the model's distribution: relative frequencies without smoothing."""
        return self.at(self.span(context))
