"""The measurement of engines, on the CPU with tiny limits: rows come, and a part that takes too long ends."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specbench.core.environment import EMBEDDED
from tools.bench_gpu import __main__ as bench
from tools.bench_gpu import runs
from tools.bench_gpu.runs import own_methods


def test_the_methods_of_the_embedded_pair_leave_out_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    own_methods.cache_clear()
    found = own_methods()
    assert {"ar", "sd", "slem", "eagle3", "medusa", "token-recycling"} <= set(found)
    assert "mtp" not in found and not any(name.startswith("hf-") for name in found)
    said = capsys.readouterr().out
    assert f"mtp is left out: method 'mtp': drafter.type = 'mtp': target '{EMBEDDED}target' has no layers" in said


@pytest.mark.slow
def test_rows_are_printed_as_numbers_with_intervals(
    specbench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of short answers, and of a run in this process, whose warm-ups are short."""

    def run(words: list[str]) -> SimpleNamespace:
        short = [word.replace("max_new_tokens=96", "max_new_tokens=12") for word in words]
        code, out, err = specbench(*short)
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    words = "--parts methods --engines eager --device cpu --methods sd,pld --prompts 1 --here"
    lines: list[str] = []
    monkeypatch.setattr(runs, "say", lines.append)
    monkeypatch.setattr(runs, "specbench", run)
    monkeypatch.setattr(bench.sys, "argv", ["bench_gpu", *words.split()])
    assert not bench.main()
    for name in ("ar", "sd", "pld"):
        line = [line for line in lines if line.startswith(f"eager · {name}: tokens/s")][-1]  # AR is in the run of each
        assert "tokens/s " in line and "speed-up " in line and "{" not in line and "greedy equal" in line


def test_a_part_that_takes_too_long_ends_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note, python = tmp_path / "pid", tmp_path / "python"
    python.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {note}\nwait\n")
    python.chmod(0o755)
    monkeypatch.setattr(bench.sys, "executable", str(python))
    monkeypatch.setattr(bench.sys, "argv", ["bench_gpu", "--parts", "series", "--limit-seconds", "2"])
    assert bench.main() == 1
    assert "series: ended after its limit of 2 s" in capsys.readouterr().out
    for _ in range(50):
        if not alive(int(note.read_text())):
            return
        time.sleep(0.1)
    raise AssertionError("the process that the part started lives on")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_all_own_methods_are_asked_for_greedy_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    done = SimpleNamespace(returncode=0, stdout="", stderr="")
    monkeypatch.setattr(runs, "specbench", lambda words: asked.append(words) or done)
    monkeypatch.setattr(runs, "own_methods", lambda: ["sd", "fsd", "medusa"])
    args = SimpleNamespace(engines=["eager"], prompts=1, device="cpu", methods=None)
    runs.greedy_tokens(args)  # type: ignore[arg-type]
    assert [words[words.index("--method") + 1] for words in asked] == ["sd", "fsd", "medusa"]
