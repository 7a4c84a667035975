"""Generations of the same prompts by several methods or runs → the columns of which paired ratios are made."""

from collections.abc import Sequence

from specbench.results.counts import timed_tokens, tokens_of_passes
from specbench.running.records import Generation

Sides = Sequence[Sequence[Generation]]  # of each side its generations, in the same order of prompts
Columns = list[list[float]]  # two of each side, of all generations


def speed_columns(sides: Sides) -> Columns:
    """Tokens and seconds. A generation of one token has no speed: it is left out on every side, so that what is
    compared is of the same answers."""
    timed = [min(map(timed_tokens, each)) > 0 for each in zip(*sides, strict=True)]
    return [
        [float(value(g) * keep) for g, keep in zip(generations, timed, strict=True)]
        for generations in sides
        for value in (timed_tokens, lambda g: g["decode_seconds"])
    ]


def length_columns(sides: Sides) -> Columns:
    """Emitted tokens and target passes. A generation without a pass has no tokens per pass: it is left out on every
    side, as of speeds."""
    counts = [list(map(tokens_of_passes, generations)) for generations in sides]
    known = [min(passes for _, passes in each) > 0 for each in zip(*counts, strict=True)]
    return [
        [float(each[part] * keep) for each, keep in zip(side, known, strict=True)] for side in counts for part in (0, 1)
    ]
