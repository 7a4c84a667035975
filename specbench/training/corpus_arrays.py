"""The arrays of the models that are made of a corpus: the counts of its n-grams, or its sorted suffixes.

All tokens are in memory at once, with about 50 bytes for each. Imports no torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specbench.core.errors import ConfigError
from specbench.core.progress import say_nothing
from specbench.models.corpus_models import Datastore, NgramModel, array_name
from specbench.models.mmap_store import Array

NOTHING = -1  # marks the end of a document and a missing context
Document = Sequence[int] | Array


class CorpusArrays(NamedTuple):
    """The content of a model's folder: the fields of its manifest and its arrays by name."""

    fields: Mapping[str, object]
    arrays: dict[str, Array]


def build_ngrams(
    documents: Iterable[Document], order: int, vocab_size: int, output: Path, tokenizer_digest: str
) -> NgramModel:
    """Counts the n-grams up to `order` inside documents (token ids each), and writes them into the folder `output`.

    A model at `output` is replaced when the new one is complete. Raises ConfigError if `output` is anything else, for
    ids outside the vocabulary, and for a corpus without tokens.
    """
    with NgramModel.replacing(Path(output)) as folder:
        fields, arrays = count_ngrams(join_documents(documents, vocab_size), order, vocab_size)
        NgramModel.write(folder, {**fields, "tokenizer_digest": tokenizer_digest}, arrays)
    return NgramModel.load(output)


def build_datastore(documents: Iterable[Document], vocab_size: int, output: Path, tokenizer_digest: str) -> Datastore:
    """Writes documents and their suffix array into the folder `output`, as `build_ngrams` writes counts."""
    with Datastore.replacing(Path(output)) as folder:
        fields, arrays = sort_suffixes(join_documents(documents, vocab_size), vocab_size)
        Datastore.write(folder, {**fields, "tokenizer_digest": tokenizer_digest}, arrays)
    return Datastore.load(output)


def join_documents(documents: Iterable[Document], vocab_size: int) -> Array:
    """Returns the tokens of all documents, with NOTHING after each: int32 [n]. Empty documents are skipped.

    Raises ConfigError for ids outside the vocabulary and for a corpus without tokens.
    """
    parts: list[Array] = []
    for document in documents:
        if len(document):
            ids = np.asarray(document, dtype=np.int64)
            if ids.min() < 0 or ids.max() >= vocab_size:
                wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
                raise ConfigError(
                    f"token id {wrong} is outside the vocabulary of {vocab_size} tokens: check documents and tokenizer"
                )
            parts.append(np.append(ids, NOTHING).astype(np.int32))
    if not parts:
        raise ConfigError("--corpus: the corpus has no tokens: give files with text")
    return np.concatenate(parts)


def count_ngrams(tokens: Array, order: int, vocab_size: int, say: Callable[[str], None] = say_nothing) -> CorpusArrays:
    """Returns an n-gram model of joined documents [n]. `say` is called with the current action.

    The key of a k-gram is one integer: the index of its first k − 1 tokens among all (k − 1)-grams, times the
    vocabulary size, plus its last token. The index of a 1-gram is its token.
    """
    if order < 1:
        raise ConfigError(f"order = {order}: an n-gram has at least one token: give 1 or more (2 counts bigrams)")
    is_token = tokens != NOTHING
    num_tokens = int(is_token.sum())
    keys, counts = np.unique(tokens[is_token], return_counts=True)
    token_type, count_type = smallest(vocab_size - 1), smallest(int(counts.max()))
    arrays: dict[str, Array] = {}
    num_ngrams: list[int] = []
    places, num_contexts = tokens, vocab_size  # the index of the k-gram that ends at each token
    for level in range(1, order + 1):
        say(f"counting {level}-grams of {num_tokens:,} tokens")
        if level > 1:
            contexts = np.append(NOTHING, places[:-1])
            is_counted = is_token & (contexts != NOTHING)
            all_keys = contexts[is_counted] * vocab_size + tokens[is_counted]
            keys, indices, counts = np.unique(all_keys, return_inverse=True, return_counts=True)
            places = np.full(len(tokens), NOTHING)
            places[is_counted] = indices
            starts = np.searchsorted(keys, np.arange(num_contexts + 1) * vocab_size)
            arrays[array_name(level, "starts")] = starts.astype(smallest(num_tokens))
            num_contexts = len(keys)
        last_tokens = (keys % vocab_size).astype(token_type)
        ranks = np.lexsort((-counts, keys // vocab_size))  # of each context, the most frequent first
        arrays[array_name(level, "ranked_tokens")] = last_tokens[ranks]
        arrays[array_name(level, "ranked_counts")] = counts[ranks].astype(count_type)
        if 1 < level < order:  # to find an n-gram that is a context of the next level
            arrays[array_name(level, "tokens")] = last_tokens
        num_ngrams.append(len(keys))
    fields = {"order": order, "vocab_size": vocab_size, "num_tokens": num_tokens, "num_ngrams": num_ngrams}
    return CorpusArrays(fields, arrays)


def sort_suffixes(tokens: Array, vocab_size: int) -> CorpusArrays:
    """Returns a datastore of joined documents [n]: their tokens, and the positions of these in sorted order."""
    marked = np.where(tokens == NOTHING, vocab_size, tokens)
    suffixes = suffix_array(marked)
    suffixes = suffixes[marked[suffixes] != vocab_size]
    fields = {"vocab_size": vocab_size, "num_tokens": len(suffixes), "num_documents": len(tokens) - len(suffixes)}
    return CorpusArrays(
        fields, {"tokens": marked.astype(smallest(vocab_size)), "suffixes": suffixes.astype(smallest(len(tokens)))}
    )


def suffix_array(tokens: Array) -> Array:
    """Returns the suffix array, the start positions of all suffixes in sorted order: int64 [n]. A suffix comes before
    its continuations.

    Prefix doubling: each round compares twice as many tokens, using the ranks of the round before.
    """
    ranks = tokens.astype(np.int64)
    length = 1
    while True:
        keys = ranks * (int(ranks.max()) + 2)
        keys[:-length] += ranks[length:] + 1
        order = np.argsort(keys)
        is_new = np.diff(keys[order]) != 0
        ranks[order[1:]] = np.cumsum(is_new)
        ranks[order[0]] = 0
        if is_new.all():
            return order
        length *= 2


def smallest(maximum: int) -> np.dtype[np.unsignedinteger]:
    """Returns the smallest little-endian unsigned type for numbers up to `maximum`."""
    return np.min_scalar_type(maximum).newbyteorder("<")
