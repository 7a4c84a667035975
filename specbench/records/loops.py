"""Loops: answers that repeat the same tokens again and again.

A loop is a run of tokens with x_k = x_(k−p) for a period p of at most MAX_PERIOD, over at least max(4p, MIN_TOKENS)
tokens, anywhere in an answer. Its tokens after the first period are in the loop. Drafters predict them easily, so loops
raise acceptance and speed-ups (docs/scoring.md).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 64
MIN_TOKENS = 48
MIN_PERIODS = 4
GRAM = 8
# A loop has at least 36 tokens that equal the one a period before (least for p = 12). Of each STRIDE consecutive
# n-grams of GRAM tokens, one therefore lies wholly inside every loop.
STRIDE = MIN_TOKENS - MIN_TOKENS // MIN_PERIODS - GRAM + 1


def count_loop_tokens(token_ids: Sequence[int] | NDArray[np.int32]) -> int:
    """Returns the number of tokens that are in loops. `token_ids`: an answer without the token that ends the text."""
    if len(token_ids) < MIN_TOKENS:
        return 0
    ids = np.asarray(token_ids, dtype=np.int64)
    in_loop = np.zeros(len(ids), dtype=bool)
    for period in _candidates(ids):
        # 1. Runs of tokens that equal the one a period before: their first places and ends.
        is_equal = np.zeros(len(ids) - period + 2, dtype=np.int8)
        is_equal[1:-1] = ids[period:] == ids[:-period]
        changes = np.flatnonzero(np.diff(is_equal))
        # 2. With the period before them, those long enough are loops.
        for start, end in zip(changes[::2], changes[1::2], strict=True):
            if end - start + period >= max(MIN_PERIODS * period, MIN_TOKENS):
                in_loop[start + period : end + period] = True
    return int(in_loop.sum())


def _candidates(ids: NDArray[np.int64]) -> Sequence[int]:
    """Returns the periods at which one of a few n-grams occurs before itself, among them those of all loops. Nearly all
    answers have none, so that only these n-grams are compared."""
    padded = np.concatenate([np.arange(-MAX_PERIOD, 0), ids])  # nothing equals what stands before the answer
    grams = np.lib.stride_tricks.sliding_window_view(padded, GRAM)
    places = np.arange(0, len(ids) - GRAM + 1, STRIDE) + MAX_PERIOD
    before = places[:, None] - np.arange(1, MAX_PERIOD + 1)
    is_same = (grams[places][:, None] == grams[before]).all(axis=-1).any(axis=0)
    periods: list[int] = (np.flatnonzero(is_same) + 1).tolist()
    return periods
