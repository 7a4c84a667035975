"""In how many ways a drafter can write a target's tokens (arXiv:2502.05202, Lemma 3.1, table 5, figure 2)."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from fractions import Fraction
from math import isqrt

from pydantic import BaseModel

from specbench.models.vocabulary import Vocabulary

EXACT_FLOAT = 10**15  # above it a mean is rounded to an integer, so that it never overflows


class Summary(BaseModel):
    """Of whole numbers, which may be huge. Quartiles are values that occur (the lower one between two)."""

    mean: float | int
    sd: float | int
    min: int
    quartile_1: int
    median: int
    quartile_3: int
    max: int


class OfLength(BaseModel):
    """The decompositions of all target tokens of one length, in bytes."""

    length: int
    num_tokens: int
    median: int
    max: int


class Decompositions(BaseModel):
    """number: decompositions of a target token into drafter tokens; passes: the draft passes that summing over them
    takes (the beginnings of decompositions that end inside the token, the empty one included): what ψ costs at least.
    num_impossible: target tokens that the drafter cannot write; they count as 0."""

    num_tokens: int
    num_impossible: int
    length: Summary
    number: Summary
    passes: Summary
    by_length: list[OfLength]


def decompositions(target: Vocabulary, drafter: Vocabulary) -> Decompositions:
    """Over all plain tokens of the target."""
    pieces = drafter.id_of.keys()
    longest = max(map(len, pieces), default=0)
    tokens = list(target.id_of)
    counted = [count(token, pieces, longest) for token in tokens]
    numbers = [number for number, _ in counted]
    by_length: dict[int, list[int]] = defaultdict(list)
    for token, number in zip(tokens, numbers, strict=True):
        by_length[len(token)].append(number)
    return Decompositions(
        num_tokens=len(tokens),
        num_impossible=numbers.count(0),
        length=summary([len(token) for token in tokens]),
        number=summary(numbers),
        passes=summary([passes for _, passes in counted]),
        by_length=[
            OfLength(length=length, num_tokens=len(of), median=quantile(sorted(of), 1, 2), max=max(of))
            for length, of in sorted(by_length.items())
        ],
    )


def count(token: bytes, pieces: Collection[bytes], longest: int) -> tuple[int, int]:
    """The sequences of pieces that join to `token`, and those that join to one of its proper beginnings.

    Both exactly, without listing any: ways[end] is the sum of ways[start] over the pieces token[start:end]; `longest`
    is the length of the longest piece.
    """
    ways = [1] + [0] * len(token)
    for end in range(1, len(token) + 1):
        for start in range(max(0, end - longest), end):
            if ways[start] and token[start:end] in pieces:
                ways[end] += ways[start]
    return ways[-1], sum(ways[:-1])


def summary(values: Sequence[int]) -> Summary:
    """Statistics without a rounding error in any sum. Raises ValueError without values."""
    if not values:
        raise ValueError("a summary needs values")
    ordered = sorted(values)
    mean = Fraction(sum(ordered), len(ordered))
    variance = Fraction(sum(value * value for value in ordered), len(ordered)) - mean * mean
    return Summary(
        mean=number(mean),
        sd=number(Fraction(isqrt(int(variance * 10**12)), 10**6)),
        min=ordered[0],
        quartile_1=quantile(ordered, 1, 4),
        median=quantile(ordered, 1, 2),
        quartile_3=quantile(ordered, 3, 4),
        max=ordered[-1],
    )


def number(value: Fraction) -> float | int:
    return float(value) if value < EXACT_FLOAT else round(value)


def quantile(ordered: Sequence[int], part: int, of: int) -> int:
    """The value at part/of of the way through sorted values, the lower one between two."""
    return ordered[(len(ordered) - 1) * part // of]
