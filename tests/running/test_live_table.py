"""The table that a terminal shows while a run measures: rows fill one after the other."""

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from specbench.decoding.decoder import Decoder
from specbench.records.generation import Record
from specbench.running import progress as live_table
from specbench.running.plan import SubsetRun, Trial
from specbench.running.progress import CAPTION, Details, RunProgress, fitted
from specbench.specs.catalogue import load_method, load_task
from specbench.tasks.examples import Example
from tests.support import records
from tests.support.records import autoregressive, generation


@pytest.fixture(autouse=True)
def _every_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.core.progress.REDRAW", 0.0)


def plan(*subsets: str, methods: tuple[str, ...] = ("ar", "sd"), examples: int = 1, task: str = "mgsm") -> list[Trial]:
    """The trials of some subsets, in turn."""
    model: Any = SimpleNamespace(vocabulary=None)
    models: Any = SimpleNamespace(target=model, drafters={})
    decoders = tuple(Decoder(load_method(name), model) for name in methods)
    data: Any = SimpleNamespace(examples=())
    runs = [SubsetRun(load_task(task).subset(name), name, data, models, decoders, None) for name in subsets]
    return [
        Trial(run, Example(number, str(number), ("?",), (None,)), 0, decoders)
        for number in range(examples) for run in runs
    ]  # fmt: skip


def record(trial: Trial, seconds: float = 0.1, accepted: int = 3) -> Record:
    """11 tokens each: AR at 50 tok/s; the others took `seconds` for 10, in steps of 4 verified tokens."""
    steps = [[4, 4, accepted, accepted + 1]] * 2
    plain = autoregressive(11, ttft_seconds=0.0, decode_seconds=0.2)
    drafted = generation(steps, token_ids=[0] * 11, ttft_seconds=0.0, decode_seconds=seconds)
    methods = {decoder.method.name: drafted for decoder in trial.order}
    task, subset, example, repeat, _ = trial.key
    return records.record({**methods, "ar": plain}, task=task, subset=subset, example=example, repeat=repeat)


def pictures(trials: list[Trial], records: list[Record], height: int = 40) -> list[str]:
    """The picture after each record."""
    console = Console(record=True, force_terminal=True, width=100, height=height, file=io.StringIO())
    found = []
    shown = RunProgress(console)
    shown.trials_started(trials)
    console.export_text()
    for trial, each in zip(trials, records, strict=True):
        shown.trial_recorded(trial, each, is_new=True)
        found.append(console.export_text())
    shown.trials_ended()
    return found


def rows_of(picture: str) -> list[list[str]]:
    """The cells of a picture's rows, with the heading of the subset in each."""
    return [line.split() for line in picture.splitlines() if re.search(r"\d+\.\d\s", line) and "━" not in line]


def test_every_subset_has_a_row_after_its_first_example() -> None:
    trials = plan("en", "de", "sw")
    *_, last = found = pictures(trials, [record(trial) for trial in trials])
    assert [[row[0] for row in rows_of(picture)] for picture in found] == [
        ["en", "all"], ["en", "de", "all"], ["en", "de", "sw", "all"]
    ]  # fmt: skip
    assert "mgsm · 3 of 3" in last and CAPTION in last and "mgsm/sw · ar 50.0 tok/s · sd 100.0 tok/s α 0.75" in last
    assert rows_of(last)[0] == ["en", "sd", "1", "0.750", "4.00", "50.0", "100.0", "2.00"]
    assert rows_of(last)[-1][:3] == ["all", "sd", "3"]


def test_a_low_terminal_shows_the_subsets_measured_last() -> None:
    trials = plan("en", "es", "fr", "de", "ru", "zh")
    found = pictures(trials, [record(trial) for trial in trials], height=15)
    assert [row[0] for row in rows_of(found[-1])] == ["fr", "de", "ru", "zh", "all"]
    assert "2 more subsets" in found[-1] and "more" not in found[0]
    assert all(len(picture.splitlines()) <= 15 for picture in found)


def test_several_methods_have_a_row_each_and_ar_one_where_it_is_alone() -> None:
    trials = plan("en", "de", methods=("ar", "sd", "fsd"))
    rows = rows_of(pictures(trials, [record(trial) for trial in trials])[-1])
    assert [row[:2] for row in rows if row[0] in ("en", "de", "all")] == [["en", "sd"], ["de", "sd"], ["all", "sd"]]
    assert [row[0] for row in rows][1::2] == ["fsd", "fsd", "fsd"]
    trials = plan("en", methods=("ar",))
    assert rows_of(pictures(trials, [record(trial) for trial in trials])[-1]) == [
        ["en", "ar", "1", "–", "1.00", "50.0", "50.0", "–"]
    ]


def test_the_table_is_of_the_task_that_is_measured() -> None:
    trials = [*plan("en", "de"), *plan("default", task="gsm8k")]
    found = pictures(trials, [record(trial) for trial in trials])
    assert "mgsm ·" in found[1] and [row[0] for row in rows_of(found[2])] == ["default"] and "gsm8k ·" in found[2]


def test_a_drafter_alone_in_its_own_vocabulary_has_no_speedup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_table, "has_other_vocabulary", lambda method, models: True)
    trials = plan("en")
    assert rows_of(pictures(trials, [record(trial) for trial in trials])[0])[0][-2:] == ["100.0", "–"]


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    trials = plan("en", "de")
    shown = RunProgress(Console(width=100, force_terminal=False))
    shown.trials_started(trials)
    for trial in trials:
        shown.trial_recorded(trial, record(trial), is_new=True)
    assert list(shown.tables()) == []
    shown.trials_ended()
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("1/2 mgsm/en · ar 50.0 tok/s · sd 100.0 tok/s α 0.75")
    assert last == "2/2 mgsm/de · ar 50.0 tok/s · sd 100.0 tok/s α 0.75"


@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit_the_console_whatever_is_measured(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """With eight methods; what is left out is counted."""
    names = ("ar", "sd", "fsd", "pld", "ngram", "suffix", "sam", "jacobi")
    trials = plan("en", "de", methods=names)
    console = Console(width=width, force_terminal=False)
    shown, details = RunProgress(console), Details(console)
    shown.trials_started(trials)
    for trial in trials:
        found = record(trial)
        for listener in (details, shown):
            listener.trial_recorded(trial, found, is_new=True)
    shown.trials_ended()
    lines = capsys.readouterr().out.splitlines()
    assert lines and max(map(cell_len, lines)) <= width
    progress = [line for line in lines if line.startswith("2/2 ")]
    (line,) = progress
    kept = line.count("tok/s")
    assert 1 < kept < len(names) and f" · {len(names) - kept} more" in line


def test_verbose_tells_each_answer(capsys: pytest.CaptureFixture[str]) -> None:
    (trial,) = plan("en")
    details = Details(Console(width=100, force_terminal=False))
    details.trial_recorded(trial, record(trial), is_new=False)
    assert capsys.readouterr().out == ""
    details.trial_recorded(trial, record(trial), is_new=True)
    assert capsys.readouterr().out.splitlines() == [
        "mgsm/en example 0:", "  ar · 11 tokens · 0.20 s · 50.0 tok/s · eos",
        "  sd · 11 tokens · 0.10 s · 100.0 tok/s · τ 4.00 · α 0.75 · eos",
    ]  # fmt: skip


def test_a_line_without_room_is_cut() -> None:
    assert fitted("a" * 90, ["sd 1 tok/s"], "", 80) == "a" * 79 + "…"
    assert fitted("a", ["b" * 9, "c" * 9], "d", 26) == "a · bbbbbbbbb · 1 more · d"
    assert fitted("a", ["b" * 9, "c" * 9], "d", 29) == "a · bbbbbbbbb · ccccccccc · d"
