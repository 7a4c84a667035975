"""Progress: plain lines where there is no terminal, with speeds and acceptance of the blocks so far."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.core.progress import SILENCE
from specbench.running import progress as running
from specbench.running.progress import RunProgress, announce, report_kept_results


def record(num_tokens: int, seconds: float, judged: int, accepted: int) -> dict[str, Any]:
    plain = {
        "token_ids": [0] * num_tokens,
        "ttft_seconds": None,
        "decode_seconds": 2 * seconds,
        "steps": [[0, 0, 0, 1]],
    }
    drafted = {
        "token_ids": [0] * num_tokens,
        "ttft_seconds": 0.1,
        "decode_seconds": seconds,
        "steps": [[judged, judged, accepted, accepted]],
    }
    return {"methods": {"ar": plain, "sd": drafted}}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the clock, which the test sets."""
    seconds = [0.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: seconds[0])
    return seconds


def lines(now: list[float], terminal: bool, num_blocks: int, tick: float, where: str = "mgsm/en") -> list[str]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120)
    with RunProgress(console, num_blocks) as progress:
        for _ in range(num_blocks):
            now[0] += tick
            progress.report(where, record(11, 0.1, 4, 3), measured=True)
    return output.getvalue().splitlines()


def test_plain_lines_carry_speed_acceptance_and_time_left(now: list[float]) -> None:
    first, *_, last = lines(now, terminal=False, num_blocks=5, tick=11.0)
    assert first.startswith("1/5 mgsm/en · ar 50 tok/s · sd 100 tok/s α 0.75 · ")
    assert first.endswith("s left")
    assert last == "5/5 mgsm/en · ar 50 tok/s · sd 100 tok/s α 0.75"


def test_plain_lines_are_rare(now: list[float]) -> None:
    """The first comes at once: nobody waits in silence."""
    first, last = lines(now, terminal=False, num_blocks=50, tick=0.1)
    assert first.startswith("1/50 ") and last.startswith("50/50 ")


@pytest.mark.parametrize("warm_up", [5.0, 500.0])
def test_the_time_left_is_without_the_warm_up(now: list[float], warm_up: float) -> None:
    """Two blocks of 3 s behind a warm-up, one whose record says 0.4 s: 6.4 s for three, and three are to come."""
    output = io.StringIO()
    with RunProgress(Console(file=output, width=120), 7) as progress:
        progress.report("mgsm/en", record(11, 0.1, 4, 3), measured=False)
        for seconds in (warm_up, 3.0, 3.0):
            now[0] += seconds
            progress._lines._printed = -99.0  # a line each
            progress.report("mgsm/en", record(11, 0.1, 4, 3), measured=True)
        assert output.getvalue().splitlines()[-1].endswith(" · 6 s left")
        now[0] += warm_up
        progress.report("mgsm/de", record(11, 0.1, 4, 3), measured=True)
    assert output.getvalue().splitlines()[-1].endswith(" · 3 s left") is (warm_up > SILENCE)


@pytest.mark.parametrize(("num_done", "expected"), [(0, "measuring 4"), (2, "2 of 4"), (4, "all 4")])
def test_what_is_measured_goes_by_its_name(num_done: int, expected: str) -> None:
    for more, name in (((), "examples"), (("turns",), "turns")):
        output = io.StringIO()
        announce(Console(file=output), 4, num_done, Path("out"), *more)
        assert f"{expected} {name} " in output.getvalue()


def test_a_terminal_shows_a_bar(now: list[float]) -> None:
    assert "mgsm/en · ar 50 tok/s" in "\n".join(lines(now, terminal=True, num_blocks=3, tick=0.01))


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("where", ["mgsm/[/x]", "mgsm/[red]en", "mgsm/cpu:x:"])
def test_names_are_shown_as_they_are(now: list[float], terminal: bool, where: str) -> None:
    assert f"{where} · ar 50 tok/s" in "\n".join(lines(now, terminal, num_blocks=3, tick=0.01, where=where))


def test_folders_are_shown_as_they_are() -> None:
    output, folder = io.StringIO(), Path("m[/x]") / "[red]:x:"
    console = Console(file=output, width=40)
    announce(console, 3, 0, folder)
    with pytest.raises(SystemExit) as stopped, report_kept_results(console, folder):
        raise KeyboardInterrupt
    assert stopped.value.code == 130
    assert [str(folder) in line for line in output.getvalue().splitlines()] == [True, True]


NO_MEMORY = [
    torch.OutOfMemoryError("x"),
    MemoryError(),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
def test_want_of_memory_is_one_line(error: Exception) -> None:
    kept = report_kept_results(Console(file=io.StringIO()), Path("out"))
    with pytest.raises(ConfigError, match=r"out of memory.*; everything measured is kept in out"), kept:
        raise error


def test_a_defect_that_speaks_of_memory_is_no_want_of_it() -> None:
    kept = report_kept_results(Console(file=io.StringIO()), Path("out"))
    with pytest.raises(RuntimeError, match="illegal memory access"), kept:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
