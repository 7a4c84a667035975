"""The target's exact next-token probabilities after every prefix that was drawn."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specbench.decoding.drafters.model import ScoringModel
from specbench.decoding.sampling import Sampling, process

Tokens = tuple[int, ...]
Key = tuple[int, Tokens]  # number of the prompt, tokens drawn after it
LOWEST_LOG_P = -9.2  # rarer tokens (p < 1e-4) count as if they were so rare: no single token decides a test
MIN_EXPECTED = 5.0


@dataclass(frozen=True)
class Row:
    """One next-token distribution: its frequent tokens, the log p of the tokens met, the moments of log p under p."""

    tokens: NDArray[np.int64]
    probs: NDArray[np.float64]
    log_p: dict[int, float]
    mean: float
    variance: float
    third: float  # central moment


@torch.inference_mode()
def exact_rows(
    target: ScoringModel,
    prompts: Sequence[list[int]],
    sequences: Iterable[Sequence[Sequence[Tokens]]],
    sampling: Sampling,
    num_draws: int,
) -> dict[Key, Row]:
    """The rows after every prefix in `sequences` (of several methods, per prompt), each prefix scored once.

    Tokens that `num_draws` draws would show fewer than five times are not kept as frequent.
    """
    met: dict[Key, set[int]] = defaultdict(set)
    for per_prompt in sequences:
        for prompt, drawn in enumerate(per_prompt):
            for tokens in drawn:
                for length, token in enumerate(tokens):
                    met[prompt, tokens[:length]].add(token)
    rows: dict[Key, Row] = {}
    keys = sorted(met)
    for (prompt, prefix), following in zip(keys, [*keys[1:], None], strict=True):
        if following is not None and following[0] == prompt and following[1][: len(prefix)] == prefix:
            continue  # the longer one gives this row too
        logits = target.score([*prompts[prompt], *prefix], len(prefix) + 1)
        for length in range(len(prefix) + 1):
            key = (prompt, prefix[:length])
            if key not in rows:
                probs = process(logits[length : length + 1], sampling)[0].double().cpu().numpy()
                rows[key] = make_row(probs, met[key], num_draws)
    return rows


def make_row(probs: NDArray[np.float64], met: Iterable[int], num_draws: int) -> Row:
    probs = probs / probs.sum()
    logs = np.maximum(np.log(np.maximum(probs, 1e-300)), LOWEST_LOG_P)
    mean = float(probs @ logs)
    centred = logs - mean
    frequent = np.flatnonzero(probs * num_draws >= MIN_EXPECTED)
    return Row(
        tokens=frequent, probs=probs[frequent], log_p={token: float(logs[token]) for token in met}, mean=mean,
        variance=float(probs @ centred**2), third=float(probs @ centred**3),
    )  # fmt: skip
