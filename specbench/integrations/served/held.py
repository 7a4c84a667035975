"""Finds the ids that a server held back: it sends a character of several tokens with the id of the last one only."""

from collections.abc import Iterator, Sequence

from specbench.core.errors import ConfigError
from specbench.models.vocabulary import Vocabulary

MAX_HELD = 3  # maximum tokens of an incomplete character: a character has at most four bytes


def held_ids(text: str, last: int, number: int, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Returns the ids of the `number` tokens before `last`; together they write `text`.

    There may be several ways to split the bytes: the tokenizer's own is preferred, then the one with the longest tokens
    first. Raises ConfigError if there is none.
    """
    written, end = text.encode(), vocabulary.to_bytes([last])
    ways = list(_splits(written.removesuffix(end), number, vocabulary)) if written.endswith(end) else []
    if not ways:
        raise ConfigError(f"held back the ids of {number} tokens, and its text {text!r} does not determine them")
    own = tuple(vocabulary.encode(text))[:number]
    return own if own in ways else ways[0]


def starts_character(written: Sequence[int]) -> bool:
    """Returns whether the first byte of a token starts a character; True for a token without bytes."""
    return not written or written[0] & 0xC0 != 0x80


def _splits(written: bytes, number: int, vocabulary: Vocabulary) -> Iterator[tuple[int, ...]]:
    """Yields the ways to split bytes into `number` tokens, longer tokens first."""
    if number == 0 and not written:
        yield ()
    for length in range(len(written), 0, -1) if number else ():
        first = vocabulary.id_of.get(written[:length])
        if first is not None:
            yield from ((first, *rest) for rest in _splits(written[length:], number - 1, vocabulary))
