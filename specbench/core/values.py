"""Plain values: digests of them, and draft trees."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
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


def model_digest(path: Path) -> str:
    """Returns SHA-256 over a large file, which is read once as long as its size and its time are the same."""
    found = path.stat()
    return _digest(path.resolve(), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=256)
def _digest(path: Path, size: int, changed: int) -> str:
    return file_digest(path, WHOLE)


def depths(parents: Sequence[int]) -> list[int]:
    """Returns the depth of each node of a tree, 1 for the children of the sequence: [num_nodes].

    Node i follows node `parents[i]`, and −1 is the sequence before the tree.
    """
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def all_known(values: Iterable[bool | None]) -> bool | None:
    """Returns whether all values are true: False if one is False, else None if one is unknown."""
    known = list(values)
    return False if False in known else None if None in known else True
