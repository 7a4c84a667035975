"""Lines that this and earlier versions wrote are read, and written again as the same bytes."""

from pathlib import Path

import pytest

from specbench.core.environment import builtin_dir
from specbench.records.generation import Decoder, Record, encode

FILES = [
    *sorted(Path(__file__).parent.glob("lines_*.jsonl")),
    *sorted(builtin_dir("leaderboards").glob("demo/*/*.jsonl")),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_lines_are_written_as_they_were_read(path: Path) -> None:
    decoder = Decoder(Record)
    for line in path.read_bytes().splitlines(keepends=True):
        assert encode(decoder.decode(line, len(line))) + b"\n" == line
