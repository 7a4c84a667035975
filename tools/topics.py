"""Topics of stories, a noun and an adjective each: `python -m tools.topics OUTPUT [--num N]
[--concreteness FILE --vectors FILE]`.

The method is that of arXiv:2605.30580, section 3.1: the most concrete nouns of Brysbaert et al. (2014) and the
adjectives of the Brown corpus, paired by the similarity of their GloVe vectors. The Brown corpus is read from nltk if
it is installed there. Otherwise, and without --vectors, the words come from topics.yaml. Every subset has the same
topics.
"""

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import product, zip_longest
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from specbench.core.errors import ConfigError
from specbench.core.files import writing
from specbench.specs.catalogue import load_task

Pair = tuple[str, str]
Vectors = dict[str, NDArray[np.float32]]


def read_vectors(path: Path, words: set[str]) -> Vectors:
    """Returns the unit vectors of the words in a GloVe text file (a word and its numbers, separated by spaces). Raises
    ConfigError."""
    vectors: Vectors = {}
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                place = f"--vectors {path}, line {number}"
                word, _, numbers = line.rstrip("\n").partition(" ")
                if word in words:
                    vector = np.array(numbers.split(), dtype=np.float32)
                    vectors[word] = vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--vectors {path}: cannot be read: {error}: check the file") from error
    except ValueError as error:
        raise ConfigError(f"{place}: not a word and its numbers: {error}: correct it") from error
    if len({vector.shape for vector in vectors.values()}) > 1:
        raise ConfigError(f"--vectors {path}: its vectors have different lengths: correct it")
    return vectors


def similar_pairs(adjectives: Sequence[str], nouns: Sequence[str], vectors: Vectors, num: int) -> list[Pair]:
    """Returns the `num` most similar pairs in which no word is repeated. Raises ConfigError if there are fewer."""
    nouns = [word for word in nouns if word in vectors]
    taken = set(nouns)
    adjectives = [word for word in adjectives if word in vectors and word not in taken]
    if num > min(len(adjectives), len(nouns)):
        raise ConfigError(
            f"--num {num}: there are vectors for {len(adjectives)} adjectives and {len(nouns)} nouns: ask for fewer "
            "topics, or give larger files"
        )
    similarity = np.stack([vectors[word] for word in adjectives]) @ np.stack([vectors[word] for word in nouns]).T
    pairs: list[Pair] = []
    for _ in range(num):  # similarity: [adjectives, nouns]; the row and column of a taken pair are excluded
        row, column = np.unravel_index(int(similarity.argmax()), similarity.shape)
        pairs.append((adjectives[row], nouns[column]))
        similarity[row, :] = similarity[:, column] = -np.inf
    return pairs


NUM_TOPICS = 200
NUM_NOUNS, NUM_ADJECTIVES = 2000, 2000  # the paper gives no numbers


def concrete_nouns(path: Path) -> list[str]:
    """Returns the single words whose `Dom_Pos` is Noun, the most concrete (`Conc.M`) first. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        chosen = [row for row in rows if row["Dom_Pos"] == "Noun" and row["Bigram"] == "0"]
        nouns = sorted((-float(row["Conc.M"]), row["Word"]) for row in chosen)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--concreteness {path}: cannot be read: {error}: check the file") from error
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(
            f"--concreteness {path}: not the ratings of Brysbaert et al., tab-separated with the columns Word, Bigram, "
            f"Conc.M and Dom_Pos ({type(error).__name__}: {error}): correct it"
        ) from error
    if not nouns:
        raise ConfigError(f"--concreteness {path}: none of its {len(rows)} words is a Noun: give the whole file")
    return [word for _, word in nouns[:NUM_NOUNS]]


def brown_adjectives() -> list[str] | None:
    """Returns the adjectives (JJ) of the Brown corpus, the most frequent first; None if nltk or its corpus is
    missing."""
    try:
        from nltk.corpus import brown

        counts = Counter(word.lower() for word, tag in brown.tagged_words() if tag == "JJ" and word.isalpha())
    except (ImportError, LookupError):
        return None
    return sorted(counts, key=lambda word: (-counts[word], word))[:NUM_ADJECTIVES]


def make_topics(num: int = NUM_TOPICS, concreteness: Path | None = None, vectors: Path | None = None) -> list[Pair]:
    """Returns the adjective and the noun of each topic; the same files give the same topics. Raises ConfigError."""
    if num < 1:
        raise ConfigError(f"--num {num}: there must be one topic at least: choose a larger number")
    if vectors is None and concreteness is not None:
        raise ConfigError("--concreteness: needs --vectors FILE (GloVe as text) to pair the nouns: add it")
    words = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    fields = [(field["adjectives"], field["nouns"]) for field in words.values()]
    if vectors is None:  # adjectives with nouns of their field, cycling through the fields
        pairs = [pair for row in zip_longest(*(product(*field) for field in fields)) for pair in row if pair]
        if num > len(pairs):
            problem = f"--num {num}: the bundled words make {len(pairs)} topics"
            raise ConfigError(f"{problem}: give --concreteness and --vectors")
        return pairs[:num]
    nouns = concrete_nouns(concreteness) if concreteness else [noun for _, column in fields for noun in column]
    adjectives = brown_adjectives() or [adjective for column, _ in fields for adjective in column]
    return similar_pairs(adjectives, nouns, read_vectors(vectors, {*nouns, *adjectives}), num)


def write_topics(output: Path, pairs: Sequence[Pair]) -> None:
    """Writes a JSONL file with the topics, once for each subset of the task `story`. Raises ConfigError."""
    rows = [
        {"subset": subset, "id": f"{subset}-{number}", "adjective": adjective, "noun": noun}
        for subset in load_task("story").subset_names
        for number, (adjective, noun) in enumerate(pairs)
    ]
    with writing(output):
        output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.topics", description=__doc__)
    parser.add_argument("output", type=Path, help="a JSONL file for `specbench run --task story --data FILE`")
    parser.add_argument("--num", type=int, default=NUM_TOPICS, help="how many topics")
    parser.add_argument("--concreteness", type=Path, help="ratings of Brysbaert et al. (2014), tab-separated")
    parser.add_argument("--vectors", type=Path, help="GloVe vectors as text")
    arguments = parser.parse_args()
    try:
        pairs = make_topics(arguments.num, arguments.concreteness, arguments.vectors)
        write_topics(arguments.output, pairs)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{len(pairs)} topics in {arguments.output}, such as {', '.join(' '.join(pair) for pair in pairs[:3])}")


if __name__ == "__main__":
    main()
