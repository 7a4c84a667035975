"""Where a long command is, said without a terminal: often enough that nobody thinks it hangs, and no flood."""

import pytest

from specbench.core import progress


def test_without_a_terminal_a_line_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    seconds = 0.0
    monkeypatch.setattr(progress, "say", lambda _, text: said.append(text))
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    with progress.status_line("measuring") as say:
        for number in range(1, 26):
            seconds = float(number)
            say(f"round {number}")
    assert said == ["round 10", "round 20"]
