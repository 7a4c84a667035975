"""Bounded reading of untrusted files: the size of texts, lines and JSON values is limited.

Without limits a few bytes can take all memory: nested brackets, numbers of a million digits, endless lines.
"""

import errno
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any, AnyStr

from specbench.core.errors import ConfigError

MAX_BYTES = 64 * 2**20  # of a file and of a line
MAX_MEMORY = 512 * 2**20  # estimated bytes of the values of a JSON text
MAX_DEPTH = 64  # levels of nested lists and mappings
MAX_DIGITS = 300  # of a number (a float has at most 309)
MAX_LINES = 2_000_000
MAX_EXPANSION = 50  # characters per byte of a compressed file, beyond the first MAX_BYTES

STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class OutOfBounds(ValueError):
    """A JSON text exceeds a limit, has a duplicate key, or holds a number or a text that is not allowed."""


def read_bytes(path: Path, remedy: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Returns the content of a file. Raises ConfigError if it cannot be read or has more than `max_bytes`."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is a folder or a device, not a file")  # reading a pipe could block
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}: {remedy}") from error
    if len(content) > max_bytes:
        raise ConfigError(f"{path}: exceeds {max_bytes:,} bytes: {remedy}")
    return content


def read_text(path: Path, remedy: str, max_bytes: int = MAX_BYTES) -> str:
    """Returns the content of a UTF-8 file. Raises ConfigError if `read_bytes` does, or for another encoding."""
    try:
        return read_bytes(path, remedy, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: it is not UTF-8 text: {remedy}") from error


def read_json(path: Path, remedy: str, strict: bool = True) -> Any:
    """Returns the value in a JSON file. Raises ConfigError "PATH: problem: remedy" if the file cannot be read, does not
    parse, exceeds a limit, has a duplicate key in a mapping, or holds a number or a text that JSON does not allow."""
    return parse_json(read_text(path, remedy), path, remedy, strict=strict)


def read_mapping(path: Path, remedy: str, strict: bool = True) -> dict[str, object]:
    """Returns the mapping in a JSON file. Raises ConfigError if `read_json` does, or for any other value."""
    value = read_json(path, remedy, strict)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: is not a mapping of keys to values: {remedy}")
    return value


def parse_json(text: str, place: object, remedy: str, line: int | None = None, strict: bool = True) -> Any:
    """Returns the value of a JSON text. `place`: its name in errors. `line`: the number of its first line in a file.

    If not `strict`, NaN, infinite numbers, NUL and lone surrogates are allowed. Raises ConfigError.
    """
    at = f"{place}, line {line}" if line else f"{place}"
    try:
        return json_value(text, strict)
    except json.JSONDecodeError as error:
        number = (line or 1) + error.lineno - 1
        raise ConfigError(f"{place}, line {number}: not valid JSON: {error.msg}: {remedy}") from error
    except OutOfBounds as error:
        raise ConfigError(f"{at}: {error}: {remedy}") from error


def json_value(text: str, strict: bool = True, max_characters: int = MAX_BYTES) -> Any:
    """Returns the value of a JSON text as `parse_json` does. Raises OutOfBounds or JSONDecodeError."""
    if len(text) > max_characters:
        raise OutOfBounds(f"exceeds {max_characters:,} characters")
    if _memory(text) > MAX_MEMORY and _memory(STRING.sub('""', text)) > MAX_MEMORY:
        raise OutOfBounds(f"has values that exceed {MAX_MEMORY:,} bytes of memory")
    try:
        value = json.loads(
            text, object_pairs_hook=_mapping, parse_int=lambda digits: int(_bounded(digits)),
            parse_float=_finite if strict else lambda digits: float(_bounded(digits)),
            parse_constant=_finite if strict else float,
        )  # fmt: skip
        has_escapes = strict and "\\u" in text  # searching the patterns in a large text takes long
        if has_escapes and ESCAPED_NUL.search(text):
            raise OutOfBounds("has a NUL character, which no name and no path can have")
        if has_escapes and ESCAPED_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise OutOfBounds(TOO_DEEP) from error
    except UnicodeEncodeError as error:
        raise OutOfBounds("has half of a surrogate pair, which is not a character") from error
    check_depth(value)
    return value


TOO_DEEP = f"exceeds {MAX_DEPTH} levels of nesting"
NESTING = {dict, list}


def check_depth(value: Any) -> None:
    """Raises OutOfBounds for lists and mappings nested deeper than MAX_DEPTH."""
    level = [value] if type(value) in NESTING else []
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) in NESTING
        ]
    raise OutOfBounds(TOO_DEEP)


def lines(
    file: IO[AnyStr], place: object, num_packed_bytes: int | None = None, max_lines: float | None = None
) -> Iterator[AnyStr]:
    """Yields the lines of an open file. `num_packed_bytes`: size of the compressed file that it was unpacked from.

    Raises ConfigError for a line of more than MAX_BYTES characters, for more than `max_lines` (MAX_LINES), and for a
    compressed file that expands to more than MAX_BYTES + MAX_EXPANSION × `num_packed_bytes` characters.
    """
    left = math.inf if num_packed_bytes is None else expanded_bound(num_packed_bytes)
    most_lines = MAX_LINES if max_lines is None else max_lines
    for number in count(1):
        line = file.readline(MAX_BYTES + 1)
        if not line:
            return
        left -= len(line)
        if len(line) > MAX_BYTES:
            raise ConfigError(f"{place}, line {number}: exceeds {MAX_BYTES:,} characters: {SPLIT}")
        if number > most_lines:
            raise ConfigError(f"{place}: exceeds {most_lines:,} lines: {SPLIT}")
        if left < 0:
            raise too_large(place)
        yield line


SPLIT = "split it, or remove what is not needed"


def expanded_bound(num_packed_bytes: int) -> int:
    """Returns the maximum number of bytes to which a compressed file of this size may expand."""
    return MAX_BYTES + MAX_EXPANSION * num_packed_bytes


def too_large(place: object) -> ConfigError:
    return ConfigError(
        f"{place}: expands to more than {MAX_EXPANSION} times its size (and {MAX_BYTES:,} bytes), which is "
        "the limit: unpack it, and give the file inside"
    )


def _memory(text: str) -> int:
    """Returns the estimated bytes that Python needs for the values: 32 for a number, 64 or more for a text, 64 for a
    list, 128 for a mapping and 32 for each of its keys."""
    return 32 * (text.count(",") + text.count('"')) + 64 * text.count("[") + 128 * text.count("{")


def repeated_key(pairs: list[tuple[str, Any]]) -> str | None:
    """Returns a key that an object of JSON has more than once, if there is one."""
    if len(dict(pairs)) == len(pairs):
        return None
    ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
    return key


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    if (key := repeated_key(pairs)) is not None:
        raise OutOfBounds(f"duplicate key {key[:60]!r}")
    return dict(pairs)


def _bounded(digits: str) -> str:
    if len(digits) > MAX_DIGITS:
        raise OutOfBounds(f"has a number of {len(digits):,} digits ({digits[:20]}…), and the limit is {MAX_DIGITS}")
    return digits


def _finite(text: str) -> float:
    value = float(_bounded(text))
    if not math.isfinite(value):
        is_constant = text in ("NaN", "Infinity", "-Infinity")
        raise OutOfBounds(f"{text[:40]} is {'not a JSON number' if is_constant else 'too large for a float'}")
    return value
