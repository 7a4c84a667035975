"""Lines that this and earlier versions wrote are read, and written again as the same bytes. Together they have every
field of a record."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from specbench.core.environment import builtin_dir
from specbench.records import generation
from specbench.records.generation import Decoder, Record, Stored, encode

FOLDER = Path(__file__).parent
FILES = [*sorted(FOLDER.glob("lines_*.jsonl")), *sorted(builtin_dir("leaderboards").glob("demo/*/*.jsonl"))]
SERVED = FOLDER / "served_of_234b622c.jsonl"
LATER = (b'"kept":null,', b'"impossible_time":null,')  # of a server's answer; the version of SERVED had neither
KINDS = {each for each in vars(generation).values() if isinstance(each, type) and issubclass(each, Stored)} - {Stored}


def lines(path: Path) -> Iterator[tuple[bytes, Record]]:
    decoder = Decoder(Record)
    for line in path.read_bytes().splitlines(keepends=True):
        yield line, decoder.decode(line, len(line))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_lines_are_written_as_they_were_read(path: Path) -> None:
    for line, record in lines(path):
        assert encode(record) + b"\n" == line


def test_served_answers_of_an_earlier_version_gain_nulls_only() -> None:
    for line, record in lines(SERVED):
        written = encode(record) + b"\n"
        for each in LATER:
            assert each not in line and each in written
            written = written.replace(each, b"")
        assert written == line


def filled(part: object) -> Iterator[str]:
    """Yields the fields, such as Record.turn, that a part and its own parts have with a value that is not the
    default."""
    if isinstance(part, dict):
        for each in part.values():
            yield from filled(each)
    if isinstance(part, Stored):
        for each in msgspec.structs.fields(type(part)):
            value = getattr(part, each.name)
            if value is not None and (each.required or value != generation._default(each)):
                yield f"{type(part).__name__}.{each.name}"
            yield from filled(value)


def test_the_lines_have_every_field() -> None:
    fields = {f"{kind.__name__}.{each.name}" for kind in KINDS for each in msgspec.structs.fields(kind)}
    found = {name for path in FILES if path.parent == FOLDER for _, record in lines(path) for name in filled(record)}
    assert fields - found == set(), "add a line that has these fields"
