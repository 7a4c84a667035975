"""The bytes that single tokens write, read off the way a tokenizer decodes."""

import json
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

Decode = Callable[[list[str]], str]
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how SentencePiece spells the token of a single byte
MANY = 5000  # tokens that are tried before a search gives up


def component_types(component: Any) -> set[str]:
    """The types of a decoder and of its parts; empty without one."""
    state = {} if component is None else json.loads(component.__getstate__())
    return {part["type"] for part in (state, *state.get("decoders", [])) if part}


def byte_alphabet() -> dict[str, int]:
    """The character that byte-level tokenizers write for each byte, and the byte (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET = byte_alphabet()


def byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[character] for character in token])
    except KeyError:  # the decoder writes such tokens as they are
        return token.encode()


def single_bytes(tokenizer: Any, tokens: dict[int, Any]) -> dict[int, bytes]:
    """The tokens of a tokenizer that knows bytes only (chr(byte), as ByT5 names them), by id; else nothing."""
    ids = {token: index for index, token in tokens.items()}
    if not all(chr(byte) in ids for byte in range(256)):
        return {}
    two = [chr(byte) for byte in "é".encode()]
    if tokenizer.convert_tokens_to_string(two) != "é":
        return {}
    return {ids[chr(byte)]: bytes([byte]) for byte in range(256)}


def decoded(tokens: dict[int, Any], decode: Decode, bytes_are_spelt: bool) -> Iterable[tuple[int, bytes | None]]:
    """What decoding says that each token writes between two others (anchors), by id."""
    anchor, head, tail = find_anchor((token for token in tokens.values() if isinstance(token, str)), decode)
    for index, token in tokens.items():
        if isinstance(token, bytes):
            yield index, token
        elif bytes_are_spelt and (byte := BYTE.fullmatch(token)):
            yield index, bytes([int(byte[1], 16)])
        else:
            text = decode([anchor, token, anchor])
            inside = len(text) >= len(head) + len(tail) and text.startswith(head) and text.endswith(tail)
            written = text[len(head) : len(text) - len(tail)]
            yield index, written.encode() if inside and ("\ufffd" not in written or "\ufffd" in token) else None


def find_anchor(tokens: Iterable[str], decode: Decode) -> tuple[str, str, str]:
    """A token that decoding writes the same way behind any other, what it writes first, and what it writes later.

    One that writes the same in both places is the best: it carries no mark of where words begin or end.
    """
    found = ("", "", "")
    for token in islice(tokens, MANY):
        head, pair, three = (decode([token] * count) for count in (1, 2, 3))
        tail = pair.removeprefix(head)
        if head.isalpha() and pair == head + tail and three == pair + tail:
            if head == tail:
                return token, head, tail
            found = found if found[0] else (token, head, tail)
    return found
