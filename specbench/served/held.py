"""The ids of tokens that a server held back: it sends a character when its last token comes, with that token's id."""

from collections.abc import Iterator, Sequence

from specbench.core.errors import ConfigError
from specbench.models.vocabulary import Vocabulary

MAX_HELD = 3  # tokens of a character that is not whole: a character has at most four bytes


def held_ids(text: str, last: int, number: int, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Returns the ids of the `number` tokens before `last`, which together with it are `text`.

    There may be several ways to cut the bytes: that of the tokenizer is taken if it is one of them, else the one with
    the longest tokens first. Raises ConfigError if there is none.
    """
    written, end = text.encode(), vocabulary.to_bytes([last])
    ways = list(_ways(written.removesuffix(end), number, vocabulary)) if written.endswith(end) else []
    if not ways:
        raise ConfigError(f"held back the ids of {number} tokens, and its text {text!r} does not tell them")
    own = tuple(vocabulary.encode(text))[:number]
    return own if own in ways else ways[0]


def begins_character(written: Sequence[int]) -> bool:
    """Returns whether the bytes of a token do not go on with a character that an earlier token began."""
    return not written or written[0] & 0xC0 != 0x80


def _ways(written: bytes, number: int, vocabulary: Vocabulary) -> Iterator[tuple[int, ...]]:
    """Yields ways to cut bytes into tokens, longer tokens first."""
    if number == 0 and not written:
        yield ()
    for length in range(len(written), 0, -1) if number else ():
        first = vocabulary.id_of.get(written[:length])
        if first is not None:
            yield from ((first, *rest) for rest in _ways(written[length:], number - 1, vocabulary))
