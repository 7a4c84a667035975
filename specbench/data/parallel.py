"""Text files that are aligned line by line, one per column: the usual form of translated texts."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from specbench import bounded
from specbench.data.local import Row
from specbench.errors import ConfigError

Files = dict[str, Path]


def find_parallel(folder: Path, patterns: Mapping[str, str], split: str = "test") -> list[Files]:
    """The files of each column, in order of name: those for which the wildcards of all patterns stand for the same
    texts. Empty when there are none: files that are named otherwise need not be translations of each other. Of several
    those that are named after the split, if any is: `test.en` beside `train.en`."""
    found = {column: _matching(folder, pattern) for column, pattern in patterns.items()}
    if not found:
        return []
    common = sorted(set.intersection(*(set(files) for files in found.values())))
    common = [texts for texts in common if any(split in text for text in texts)] or common
    return [{column: files[texts] for column, files in found.items()} for texts in common]


def _matching(folder: Path, pattern: str) -> dict[tuple[str, ...], Path]:
    """The files that a pattern means, by what its wildcards stand for."""
    expression = re.compile("(.*)".join(map(re.escape, pattern.split("*"))))
    found = {}
    for path in sorted(folder.glob(pattern)):
        match = expression.fullmatch(path.relative_to(folder).as_posix())
        if match and path.is_file():
            found[match.groups()] = path
    return found


def parallel_rows(files: Files) -> Iterator[tuple[str, Row]]:
    """The rows, each with its place; lines that are blank in all files are left out.

    Raises ConfigError when the files have not the same number of lines.
    """
    columns = {column: _lines(path) for column, path in files.items()}
    counts = {str(files[column]): len(lines) for column, lines in columns.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count} lines" for name, count in counts.items())
        raise ConfigError(f"local.parallel: {told}: aligned files have as many: correct them")
    first = next(iter(files.values()))
    for number, texts in enumerate(zip(*columns.values(), strict=True), start=1):
        if any(text.strip() for text in texts):
            yield f"{first}, line {number}", dict(zip(columns, texts, strict=True))


def _lines(path: Path) -> list[str]:
    """Only a line feed ends a line: other characters that could may stand inside a text."""
    try:
        text = bounded.read_bytes(path, "divide it").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: convert it") from error
    lines = text.split("\n")
    return [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
