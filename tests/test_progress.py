"""Progress: plain lines where there is no terminal, with speeds and acceptance of the blocks so far."""

import io
from typing import Any

from rich.console import Console

from specbench.running.progress import RunProgress


def record(num_tokens: int, seconds: float, judged: int, accepted: int) -> dict[str, Any]:
    plain = {"token_ids": [0] * num_tokens, "decode_seconds": 2 * seconds, "steps": [[0, 0, 0, 1]]}
    drafted = {
        "token_ids": [0] * num_tokens,
        "decode_seconds": seconds,
        "steps": [[judged, judged, accepted, accepted]],
    }
    return {"methods": {"ar": plain, "sd": drafted}}


def lines(terminal: bool, num_blocks: int, tick: float) -> list[str]:
    output = io.StringIO()
    now = iter(float(i) * tick for i in range(1000))
    console = Console(file=output, force_terminal=terminal, width=120)
    with RunProgress(console, num_blocks, clock=lambda: next(now)) as progress:
        for _ in range(num_blocks):
            progress.report("mgsm/en", record(11, 0.1, 4, 3), measured=True)
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
