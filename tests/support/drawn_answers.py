"""Answers drawn from a known distribution."""

from collections.abc import Sequence
from typing import Any

import numpy as np

TOKENS = (17, 18, 19, 20)
SHORT = ("generation.max_new_tokens=24",)


def model(ids: Sequence[int]) -> dict[int, float]:
    """The target: the token that comes next depends on the last one."""
    return dict(zip(np.roll(TOKENS, ids[-1] % 4).tolist(), (0.9, 0.05, 0.03, 0.02), strict=True))


def tied(gap: float) -> Any:
    """Returns a target whose two best tokens are `gap` apart, and a server that takes the other of the two."""

    def target(ids: Sequence[int], sign: float = 1.0) -> dict[int, float]:
        best = (0.48 * np.exp(sign * gap / 2), 0.48 * np.exp(-sign * gap / 2))
        return dict(zip(model(ids), (*best, 0.02, 0.02), strict=True))

    return target, lambda ids: target(ids, -1.0)
