"""Builds datastores: the tokens of documents, and their suffix array."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from specbench.models.array_folder import SUFFIX, Array
from specbench.models.corpus_models import DATASTORE_FOLDER, Datastore
from specbench.training.ngram_build import (
    CHUNK_TOKENS,
    NOTHING,
    CountingProgress,
    Document,
    append,
    smallest,
    token_chunks,
)


def build_datastore(documents: Iterable[Document], vocab_size: int, output: Path, tokenizer_digest: str) -> Datastore:
    """Writes documents (token ids each) and their suffix array into the folder `output`.

    A datastore at `output` is replaced when the new one is complete. Raises ConfigError if `output` is anything else,
    for ids outside the vocabulary, and for a corpus without tokens.
    """
    with DATASTORE_FOLDER.replacing(Path(output)) as folder:
        store_into(folder, documents, vocab_size, tokenizer_digest, lambda doing, num_tokens: None)
    return Datastore.load(output)


def store_into(
    folder: Path, documents: Iterable[Document], vocab_size: int, tokenizer_digest: str, progress: CountingProgress
) -> None:
    """Builds a datastore as `build_datastore` does, but into an empty folder. `progress` is called with the current
    action and its number of tokens."""
    chunks = [
        np.where(chunk == NOTHING, vocab_size, chunk).astype(smallest(vocab_size))
        for chunk in token_chunks(documents, vocab_size, CHUNK_TOKENS, progress)
    ]
    tokens = np.concatenate(chunks)
    progress("sorting", len(tokens))
    suffixes = suffix_array(tokens)
    suffixes = suffixes[tokens[suffixes] != vocab_size].astype(smallest(len(tokens)))
    arrays = {"tokens": tokens, "suffixes": suffixes}
    for name, array in arrays.items():
        append(folder / f"{name}{SUFFIX}", array)
    fields = {"vocab_size": vocab_size, "num_tokens": len(suffixes), "num_documents": len(tokens) - len(suffixes),
              "tokenizer_digest": tokenizer_digest}  # fmt: skip
    DATASTORE_FOLDER.write(folder, fields, {name: (array.dtype.str, len(array)) for name, array in arrays.items()})


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
