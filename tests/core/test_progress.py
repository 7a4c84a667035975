"""Progress: plain lines where there is no terminal, with speeds and acceptance of the blocks so far."""

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from specbench.core import progress
from specbench.core.errors import ConfigError
from specbench.core.progress import SILENCE, Heartbeat, ProgressBar, doing, status_line
from specbench.records.generation import Record
from specbench.running import progress as running
from specbench.running.plan import Trial
from specbench.running.progress import RunProgress, announce, report_kept_results
from tests.support import records


def record(num_tokens: int, seconds: float, verified: int, accepted: int) -> Record:
    plain = {
        "token_ids": [0] * num_tokens,
        "ttft_seconds": 0.0,
        "decode_seconds": 2 * seconds,
        "steps": [[0, 0, 0, 1]],
    }
    drafted = {
        "token_ids": [0] * num_tokens,
        "ttft_seconds": 0.1,
        "decode_seconds": seconds,
        "steps": [[verified, verified, accepted, accepted]],
    }
    return records.record({"ar": records.generation(**plain), "sd": records.generation(**drafted)})


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the clock, which the test sets."""
    seconds = [0.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: seconds[0])
    return seconds


def progress_of(output: io.StringIO, places: Sequence[str], terminal: bool = False) -> tuple[RunProgress, list[Trial]]:
    """The progress of a run with a trial at each place, TASK/SUBSET."""
    runs: dict[str, Any] = {}
    for place in places:
        task, _, subset = place.partition("/")
        runs[place] = SimpleNamespace(task=SimpleNamespace(name=task), subset=subset, decoders=())
    trials: list[Any] = [SimpleNamespace(run=runs[place]) for place in places]
    shown = RunProgress(Console(file=output, force_terminal=terminal, width=120))
    shown.tables = lambda: iter(())  # type: ignore[method-assign]
    shown.trials_started(trials)
    return shown, trials


def lines(now: list[float], terminal: bool, num_trials: int, tick: float, where: str = "mgsm/en") -> list[str]:
    output = io.StringIO()
    shown, trials = progress_of(output, [where] * num_trials, terminal)
    for trial in trials:
        now[0] += tick
        shown.trial_recorded(trial, record(11, 0.1, 4, 3), is_new=True)
    shown.trials_ended()
    return output.getvalue().splitlines()


def test_plain_lines_carry_speed_acceptance_and_time_left(now: list[float]) -> None:
    first, *_, last = lines(now, terminal=False, num_trials=5, tick=11.0)
    assert first.startswith("1/5 mgsm/en · ar 50.0 tok/s · sd 100.0 tok/s α 0.75 · ")
    assert first.endswith("s left")
    assert last == "5/5 mgsm/en · ar 50.0 tok/s · sd 100.0 tok/s α 0.75"


def test_a_slow_speed_has_a_decimal(now: list[float]) -> None:
    """.91 tokens/s is not "1"."""
    output = io.StringIO()
    shown, (trial,) = progress_of(output, ["mgsm/en"])
    shown.trial_recorded(trial, record(11, 11.0, 4, 3), is_new=True)
    shown.trials_ended()
    assert "ar 0.5 tok/s · sd 0.9 tok/s" in output.getvalue()


def test_the_time_left_holds_the_warm_ups_of_the_other_subsets(now: list[float]) -> None:
    """Trials of 3 s; the first subset warmed up for 20 s, the second for 2 s, and two more are to come."""
    output = io.StringIO()
    places = [f"mgsm/{subset}" for subset in ("en", "en", "de", "de", "fr", "fr", "es", "es")]
    shown, trials = progress_of(output, places)
    lefts = []
    for trial, seconds in zip(trials, (20.3, 3.0, 2.3, 3.0), strict=False):
        now[0] += seconds
        shown.trial_recorded(trial, record(11, 0.1, 4, 3), is_new=True)
        lefts.append(progress._activities[-1].text.rpartition(" · ")[2])
    shown.trials_ended()
    # the first trial of a subset counts with the .4 s of its record: warm-ups took 19.9 s and 1.9 s
    assert lefts == ["62 s left", "70 s left", "10 s left", "11 s left"]


@pytest.fixture
def beating(now: list[float], monkeypatch: pytest.MonkeyPatch) -> tuple[Heartbeat, io.StringIO]:
    """A heartbeat without its thread, and what it prints into a file."""
    output = io.StringIO()
    console = Console(file=output, width=120)
    monkeypatch.setattr("specbench.core.progress.stderr", console)
    heartbeat = Heartbeat(console)
    with heartbeat:
        pass
    return heartbeat, output


def test_silence_is_broken_every_ten_seconds(now: list[float], beating: tuple[Heartbeat, io.StringIO]) -> None:
    """By what the process does at that moment, and for how long."""
    heartbeat, output = beating
    assert heartbeat.beat() == SILENCE
    now[0] += 60
    heartbeat.beat()
    assert output.getvalue() == "", "nothing is being done"
    with doing("loading a"), doing("reading b") as tell:
        for seconds in (4, 7, 9, 11):
            now[0] += seconds
            heartbeat.beat()
        tell("reading c")
        now[0] += 11
        heartbeat.beat()
    with doing("loading a"), status_line("auditing") as say:
        now[0] += 20
        heartbeat.beat()
        say("auditing sd")
        for seconds in (9, 1):
            now[0] += seconds
            assert heartbeat.beat() <= SILENCE
    lines = ["reading b", "reading b (20 s)", "reading b (31 s)", "reading c (11 s)", "auditing (20 s)"]
    lines.append("auditing sd (10 s)")
    assert output.getvalue().splitlines() == lines


def test_a_bar_shows_what_is_done_instead_of_lines(now: list[float]) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120)
    with Heartbeat(console) as heartbeat:
        pass  # no thread
    with ProgressBar(console, "starting", 3, above=lambda: ()) as bar, doing("warming up en: ar, block 1"):
        now[0] += 12
        heartbeat.beat()
        assert "warming up en: ar, block 1 (12 s)" in output.getvalue()
        bar.update("1/3", 1, is_due=True)
    assert "1/3" in output.getvalue() and not progress._activities


def test_plain_lines_are_rare(now: list[float]) -> None:
    """The first comes at once: nobody waits in silence."""
    first, last = lines(now, terminal=False, num_trials=50, tick=0.1)
    assert first.startswith("1/50 ") and last.startswith("50/50 ")


@pytest.mark.parametrize("warm_up", [5.0, 500.0])
def test_the_time_left_is_without_the_warm_up(now: list[float], warm_up: float) -> None:
    """Two trials of 3 s behind a warm-up, one whose record says 0.4 s: 6.4 s for three, and three are to come."""
    output = io.StringIO()
    shown, trials = progress_of(output, ["mgsm/en"] * 7)
    shown.trial_recorded(trials[0], record(11, 0.1, 4, 3), is_new=False)
    for trial, seconds in zip(trials[1:], (warm_up, 3.0, 3.0), strict=False):
        now[0] += seconds
        shown.trial_recorded(trial, record(11, 0.1, 4, 3), is_new=True)
    assert progress._activities[-1].text.endswith(" · 6 s left")
    shown.trials_ended()


@pytest.mark.parametrize(("num_done", "expected"), [(0, "measuring 4"), (2, "2 of 4"), (4, "all 4")])
def test_what_is_measured_goes_by_its_name(num_done: int, expected: str) -> None:
    for more, name in (((), "examples"), (("turns",), "turns")):
        output = io.StringIO()
        announce(Console(file=output), 4, num_done, Path("out"), *more)
        assert f"{expected} {name} " in output.getvalue()


def test_a_terminal_shows_a_bar(now: list[float]) -> None:
    assert "mgsm/en · ar 50.0 tok/s" in "\n".join(lines(now, terminal=True, num_trials=3, tick=0.01))


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("where", ["mgsm/[/x]", "mgsm/[red]en", "mgsm/cpu:x:"])
def test_names_are_shown_as_they_are(now: list[float], terminal: bool, where: str) -> None:
    assert f"{where} · ar 50.0 tok/s" in "\n".join(lines(now, terminal, num_trials=3, tick=0.01, where=where))


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


def test_a_silence_is_broken_by_the_count_before_what_is_done_inside(now: list[float]) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=False, width=120)
    beat = Heartbeat(console).beat
    progress.output.note_output()
    with ProgressBar(console, "measuring", 3) as bar, doing("sd is generating"):
        for seconds, completed in ((20.0, 1), (40.0, None), (60.0, 2)):
            now[0] = seconds
            if completed is not None:
                bar.update("measuring", completed, f"{completed}/3")
            beat()
    assert output.getvalue().splitlines() == ["1/3", "sd is generating (40 s)", "2/3"]
