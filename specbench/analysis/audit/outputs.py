"""Outputs, token by token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """A prompt of the audit and AR's greedy output for it."""

    name: str
    prompt_ids: list[int]
    token_ids: list[int]


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first position at which two outputs differ; an output that ends earlier differs where it ends."""
    if list(first) == list(second):
        return None
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def different(records: Sequence[Mapping[str, Any]], method: str) -> list[Mapping[str, Any]]:
    """Returns the records in which a method's answer is not AR's."""
    pairs = ((record, (record["methods"][name]["token_ids"] for name in ("ar", method))) for record in records)
    return [record for record, (own, other) in pairs if first_difference(own, other) is not None]
