"""Progress: plain lines where there is no terminal, with speeds and acceptance of the blocks so far."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from specbench.errors import ConfigError
from specbench.running.progress import RunProgress, announce, saying_what_is_kept


def record(num_tokens: int, seconds: float, judged: int, accepted: int) -> dict[str, Any]:
    plain = {"token_ids": [0] * num_tokens, "decode_seconds": 2 * seconds, "steps": [[0, 0, 0, 1]]}
    drafted = {
        "token_ids": [0] * num_tokens,
        "decode_seconds": seconds,
        "steps": [[judged, judged, accepted, accepted]],
    }
    return {"methods": {"ar": plain, "sd": drafted}}


def lines(terminal: bool, num_blocks: int, tick: float, where: str = "mgsm/en") -> list[str]:
    output = io.StringIO()
    now = iter(float(i) * tick for i in range(1000))
    console = Console(file=output, force_terminal=terminal, width=120)
    with RunProgress(console, num_blocks, clock=lambda: next(now)) as progress:
        for _ in range(num_blocks):
            progress.report(where, record(11, 0.1, 4, 3), measured=True)
    return output.getvalue().splitlines()


def test_plain_lines_carry_speed_acceptance_and_time_left() -> None:
    first, *_, last = lines(terminal=False, num_blocks=5, tick=11.0)
    assert first.startswith("1/5 mgsm/en · ar 50 tok/s · sd 100 tok/s α 0.75 · ")
    assert first.endswith("s left")
    assert last == "5/5 mgsm/en · ar 50 tok/s · sd 100 tok/s α 0.75"


def test_plain_lines_are_rare() -> None:
    assert len(lines(terminal=False, num_blocks=50, tick=0.1)) == 1


def test_a_terminal_shows_a_bar() -> None:
    assert "mgsm/en · ar 50 tok/s" in "\n".join(lines(terminal=True, num_blocks=3, tick=0.01))


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("where", ["mgsm/[/x]", "mgsm/[red]en", "mgsm/cpu:x:"])
def test_names_are_shown_as_they_are(terminal: bool, where: str) -> None:
    assert f"{where} · ar 50 tok/s" in "\n".join(lines(terminal, num_blocks=3, tick=0.01, where=where))


def test_folders_are_shown_as_they_are() -> None:
    output, folder = io.StringIO(), Path("m[/x]") / "[red]:x:"
    console = Console(file=output, width=40)
    announce(console, 3, 0, folder)
    with pytest.raises(SystemExit) as stopped, saying_what_is_kept(console, folder):
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
    kept = saying_what_is_kept(Console(file=io.StringIO()), Path("out"))
    with pytest.raises(ConfigError, match="out of memory; everything measured is kept in out"), kept:
        raise error


def test_a_defect_that_speaks_of_memory_is_no_want_of_it() -> None:
    kept = saying_what_is_kept(Console(file=io.StringIO()), Path("out"))
    with pytest.raises(RuntimeError, match="illegal memory access"), kept:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
