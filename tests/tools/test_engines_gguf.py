"""The table of the engine llama.cpp beside the bare calls."""

import json
import sys

import pytest

from tests.support import gguf_files
from tools.engines import gguf

gguf_files.needs_llama_cpp()

NAMES = ["pass of 1", "pass of 6", "pass of 16", "token"]


def test_each_pass_has_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["gguf", str(gguf_files.embedded("drafter")), "--turns", "2", "--threads", "1"]
    monkeypatch.setattr(gguf.HOST, "leave_out_waits", lambda: None)  # which later tests would inherit
    monkeypatch.setattr(sys, "argv", command)
    gguf.main()
    printed = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("|")][2:] == NAMES
    assert "if the calls compute nothing: pass of 1 " in printed
    monkeypatch.setattr(sys, "argv", [*command, "--json"])
    gguf.main()
    found = json.loads(capsys.readouterr().out)
    assert list(found) == NAMES and all(len(each) == 2 for pair in found.values() for each in pair)


def test_the_ratio_is_the_median_of_turns() -> None:
    assert gguf.line("token", ([1.0, 2.0, 4.0], [1.5, 2.0, 2.0]))[-2:] == ["1.000", "1.500"]
