"""Words paired by the similarity of their vectors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specbench.errors import ConfigError

Pair = tuple[str, str]
Vectors = dict[str, NDArray[np.float32]]


def read_vectors(path: Path, words: set[str]) -> Vectors:
    """The unit vectors of the words in a GloVe text file (a word and its numbers, a space apart).

    Raises ConfigError.
    """
    vectors: Vectors = {}
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                word, _, numbers = line.rstrip("\n").partition(" ")
                if word in words:
                    vectors[word] = _unit(numbers, f"--vectors {path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--vectors {path}: cannot be read: {error}: check the file") from error
    if len({vector.shape for vector in vectors.values()}) > 1:
        raise ConfigError(f"--vectors {path}: its vectors have different lengths: correct it")
    return vectors


def _unit(numbers: str, place: str) -> NDArray[np.float32]:
    try:
        vector = np.array(numbers.split(), dtype=np.float32)
    except ValueError as error:
        raise ConfigError(f"{place}: not a word and its numbers: {error}: correct it") from error
    return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))


def similar_pairs(adjectives: Sequence[str], nouns: Sequence[str], vectors: Vectors, num: int) -> list[Pair]:
    """The `num` most similar pairs in which no word comes twice. Raises ConfigError when there are not so many."""
    nouns = [word for word in nouns if word in vectors]
    taken = set(nouns)
    adjectives = [word for word in adjectives if word in vectors and word not in taken]
    if num > min(len(adjectives), len(nouns)):
        raise ConfigError(
            f"--num {num}: the vectors know {len(adjectives)} adjectives and {len(nouns)} nouns: ask for fewer topics, "
            "or give larger files"
        )
    similarity = np.stack([vectors[word] for word in adjectives]) @ np.stack([vectors[word] for word in nouns]).T
    pairs: list[Pair] = []
    for _ in range(num):  # [adjectives, nouns]; a pair once taken leaves its row and its column
        row, column = np.unravel_index(int(similarity.argmax()), similarity.shape)
        pairs.append((adjectives[row], nouns[column]))
        similarity[row, :] = similarity[:, column] = -np.inf
    return pairs
