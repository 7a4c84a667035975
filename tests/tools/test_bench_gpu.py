"""The measurement of engines, on the CPU with tiny limits: rows come, and a part that takes too long ends."""

import argparse
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specbench.core.environment import EMBEDDED
from specbench.decoding.loop import GenerationOutput
from specbench.decoding.proposal import Step
from tests.support.processes import subprocess_in_process
from tools.bench_gpu import __main__ as bench
from tools.bench_gpu import formula, passes, runs
from tools.bench_gpu.formula import NUM_DRAFT_TOKENS, formula_line
from tools.bench_gpu.runs import own_methods

NUMBER = r"\d+\.\d+"


@pytest.fixture
def commands_in_process(specbench: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's commands run in this process, where warm-ups are short, and give short answers."""

    def short(*words: str) -> tuple[int, str, str]:
        return specbench(*[re.sub("max_new_tokens=.*", "max_new_tokens=12", word) for word in words])

    monkeypatch.setattr(runs, "subprocess", subprocess_in_process(short))


def test_the_methods_of_the_embedded_pair_leave_out_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    own_methods.cache_clear()
    found = own_methods()
    assert {"ar", "sd", "slem", "eagle3", "medusa", "token-recycling"} <= set(found)
    assert "mtp" not in found and not any(name.startswith("hf-") for name in found)
    said = capsys.readouterr().out
    assert f"mtp is left out: method 'mtp': drafter.type = 'mtp': target '{EMBEDDED}target' has no layers" in said


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_rows_are_printed_as_numbers_with_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--parts methods --engines eager --device cpu --methods sd,pld --prompts 1 --here"
    lines: list[str] = []
    monkeypatch.setattr(runs, "say", lines.append)
    monkeypatch.setattr(bench.sys, "argv", ["bench_gpu", *words.split()])
    assert not bench.main()
    for name in ("ar", "sd", "pld"):
        line = [line for line in lines if line.startswith(f"eager · {name}: tokens/s")][-1]  # AR is in the run of each
        assert "tokens/s " in line and "speed-up " in line and "{" not in line and "greedy equal" in line


@pytest.fixture
def args(monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Arguments for the tiny shapes on the CPU. Texts are short, so that a difference of times may be negative."""
    for name in ("passes.NUM_TOKENS", "passes.CONTEXT", "formula.NUM_PROMPT_TOKENS", "formula.NUM_NEW_TOKENS"):
        monkeypatch.setattr(f"tools.bench_gpu.{name}", 8)
    words = "bench_gpu --engines transformers,eager,graphs --shapes tiny --device cpu --prompts 2 --processes 1"
    monkeypatch.setattr(bench.sys, "argv", words.split())
    return bench.parsed()


def test_every_engine_has_its_passes_and_drafts(args: argparse.Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    passes.passes(args)
    told = capsys.readouterr().out
    for engine in ("transformers", "eager"):
        assert re.search(rf"random-tiny · {engine}: -?{NUMBER} ms per token, -?{NUMBER} of the copy's bandwidth", told)
    for length in (1, 2, 6):  # the tiny drafter is the tiny target
        assert re.search(rf"random-tiny · eager: pass of {length}: {NUMBER} ms, {NUMBER} of one", told)
    for name in ("greedy", "sampled"):
        assert re.search(rf"random-tiny · eager: drafting, {name}: {NUMBER} ms a token, {NUMBER} of the", told)
    assert "· graphs" not in told, "a CPU records no graphs"


def test_every_rate_has_its_speed_up(
    args: argparse.Namespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formula, "RATES", (0.0, 0.5, 1.0))
    formula.formula(args)
    told = capsys.readouterr().out
    found = re.findall(
        rf"eager: α ({NUMBER}) \(found ({NUMBER})\): speed-up {NUMBER}.*, ÷ f {NUMBER}, ÷ f with v", told
    )
    assert [asked for asked, _ in found] == ["0.0", "0.5", "1.0"]
    assert [rate for _, rate in found[::2]] == ["0.000", "1.000"] and 0 < float(found[1][1]) < 1


@pytest.mark.slow
@pytest.mark.usefixtures("commands_in_process")
def test_the_series_has_a_time_for_each_answer(args: argparse.Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    runs.series(args)
    (line,) = capsys.readouterr().out.splitlines()
    times = line.partition("eager, process 1: ms per token ")[2].split()
    assert len(times) == 16 and all(float(each) > 0 for each in times)


def generation(num_steps: int, num_draft_tokens: int, seconds: float, verifying: float) -> GenerationOutput:
    """`num_steps` target passes of `verifying` seconds, each behind a draft of 0.1 s a token that is accepted whole;
    `seconds` in all."""
    emitted = num_draft_tokens + 1
    return GenerationOutput(
        token_ids=[0] * (1 + num_steps * emitted), finish="length",
        steps=[Step(num_draft_tokens, num_draft_tokens, num_draft_tokens, emitted)] * num_steps, positions={},
        target_passes=[(emitted, verifying)] * num_steps, draft_passes=[(1, 0.1)] * (num_draft_tokens * num_steps),
        ttft_seconds=1.0, draft_prefill_seconds=0.0, decode_seconds=seconds,
    )  # fmt: skip


def test_a_speed_up_stands_beside_its_formulas() -> None:
    """AR's 12 tokens in 12 s; 2 steps of 5 draft tokens, all accepted, at c = 0.1 and v = 1.5: 4 s. f is 6 / 1.5, with
    v 6 / 2."""
    pair = {"ar": generation(12, 0, 12.0, 1.0), "sd": generation(2, NUM_DRAFT_TOKENS, 4.0, 1.5)}
    assert formula_line(1.0, [pair]) == (
        "α 1.0 (found 1.000): speed-up 3.00, ÷ f 0.750, ÷ f with v 1.000; c 0.100, v 1.500"
    )


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
