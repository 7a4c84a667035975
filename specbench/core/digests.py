"""SHA-256 digests of texts, bytes, JSON values and files, as hex digits."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WHOLE = 64  # all hex digits of SHA-256


def bytes_digest(parts: Iterable[bytes], length: int = 12) -> str:
    """Returns the first `length` hex digits of SHA-256 over the joined parts."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()[:length]


def text_digest(text: str, length: int = 12) -> str:
    """Returns the first hex digits of SHA-256 over a text in UTF-8. Lone surrogates are allowed."""
    return bytes_digest([text.encode("utf-8", "surrogatepass")], length)


def json_digest(value: Any, length: int = 12) -> str:
    """Returns the first hex digits of SHA-256 over a value as JSON with sorted keys."""
    return text_digest(json.dumps(value, sort_keys=True), length)


def file_digest(path: Path, length: int = 12) -> str:
    """Returns the first hex digits of SHA-256 over the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:length]
