"""Whole runs of GGUF files in llama.cpp: an answer that loops, runs that are interrupted and killed, and an audit of a
pair of files."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.results.leaderboard import load
from specbench.results.verdict import FAILS_BELOW
from specbench.results.warnings import MAX_CHANGE
from tests.support.gguf_files import needs_llama_cpp
from tests.support.processes import started

needs_llama_cpp()
pytestmark = pytest.mark.real
Command = Callable[..., tuple[int, str, str]]

LOOPING = "The shopping list: apple, banana, cherry, apple, banana, cherry,"
PLAIN = ["Q: What is the capital of France?\nA:", "He said that he"]


def task_of(folder: Path, texts: list[str], num_tokens: int) -> Path:
    """Writes a task of texts without a chat template."""
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    path = folder / "texts.yaml"
    path.write_text(
        'name: texts\nversion: 1\ntitle: Texts\nprompt: "{{ row.text }}"\n'
        f"generation: {{max_new_tokens: {num_tokens}}}\n"
        "local: {files: [rows]}\n"
    )
    return path


def answers(folder: Path) -> dict[int, dict[str, Any]]:
    """Returns what was written, by example: of each method the tokens, its steps as [drafted, verified, accepted,
    emitted], and the end."""
    found = {}
    for line in (folder / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["example"] not in found
        found[record["example"]] = {
            name: (each["token_ids"], each["steps"], each["finish"]) for name, each in record["methods"].items()
        }
    return found


def tokens_in_loops(ids: list[int]) -> int:
    """By the definition: each token that lies in a run of x_k = x_(k-p) of at least max(4p, 48) tokens, without the
    first p of that run."""
    inside: set[int] = set()
    for period in range(1, 65):
        for start in range(len(ids)):
            end = start + period
            while end < len(ids) and ids[end] == ids[end - period]:
                end += 1
            if end - start >= max(4 * period, 48):
                inside.update(range(start + period, end))
    return len(inside)


def test_an_answer_that_loops_is_found_and_told(real_models: Path, specbench: Command, tmp_path: Path) -> None:
    task = task_of(tmp_path, [LOOPING, *PLAIN], 128)
    code, printed, said = specbench(
        "run", "--task", task, "--data", tmp_path, "--method", "pld", "--target", real_models / "smollm2-135m.gguf",
        "--engine", "llama.cpp", "--chat", "never", "--threads", "1", "--output", "here",
    )  # fmt: skip
    assert code == 0, said
    written = answers(Path("here"))
    assert len(written) == 3 and all(own["ar"][0] == own["pld"][0] for own in written.values())
    ids = {name: [own[name][0] for own in written.values()] for name in ("ar", "pld")}
    in_loops = [tokens_in_loops(each) for each in ids["pld"]]
    assert [number > 0 for number in sorted(in_loops)] == [False, False, True] and max(in_loops) > 100
    rows = {row.method_name: row for row in load(Path("here") / "leaderboard.json")}
    found = {name: rows["pld"].value(name) for name in rows["pld"].metrics}
    assert found["share_looping"] == found["share_looping_ar"] == pytest.approx(1 / 3)
    assert found["share_in_loops"] == pytest.approx(sum(in_loops) / sum(map(len, ids["pld"])))
    # Without the prompt that loops, for AR and the method alike: τ of the other two.
    kept = [own["pld"] for own, number in zip(written.values(), in_loops, strict=True) if not number]
    length = sum(step[3] for each in kept for step in each[1]) / sum(len(each[1]) for each in kept)
    assert found["mean_acceptance_length_without_loops"] == pytest.approx(length)
    assert found["mean_acceptance_length"] > (1 + MAX_CHANGE) * length > 0
    assert "†" in printed and "repeat themselves in loops" in " ".join((printed + said).split())


NUM_EXAMPLES = 6
LONGEST = 600  # seconds, for a process that hangs


def test_a_run_that_is_interrupted_and_killed_is_finished(real_models: Path, tmp_path: Path) -> None:
    """By Ctrl-C and by kill -9: the same command goes on, and writes what a run in one piece writes."""
    task = task_of(tmp_path, [f"{text} {number}" for number in range(NUM_EXAMPLES // 2) for text in PLAIN], 16)

    def words(folder: str) -> list[str]:
        return [
            "specbench", "run", "--task", str(task), "--data", str(tmp_path), "--method", "pld", "--target",
            str(real_models / "smollm2-135m.gguf"), "--engine", "llama.cpp", "--chat", "never", "--threads", "1",
            "--output", str(tmp_path / folder),
        ]  # fmt: skip

    def stopped(number: signal.Signals, at_least: int) -> int:
        """Sends a signal as soon as so many records are there. Returns the exit code."""
        process, end = started(words("broken"), stderr=tmp_path / f"{number.name}.txt"), time.monotonic() + LONGEST
        records = tmp_path / "broken" / "records.jsonl"
        while not records.exists() or records.read_bytes().count(b"\n") < at_least:
            assert process.is_alive() and time.monotonic() < end
            time.sleep(0.005)
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join(LONGEST)
        assert process.exitcode is not None
        return process.exitcode

    process = started(words("whole"))
    process.join(LONGEST)
    assert process.exitcode == 0
    whole = answers(tmp_path / "whole")
    assert len(whole) == NUM_EXAMPLES
    assert stopped(signal.SIGINT, 1) == 130
    said = " ".join((tmp_path / "SIGINT.txt").read_text().split())
    assert "interrupted: everything measured is kept in" in said and "Traceback" not in said
    first = answers(tmp_path / "broken")
    assert 0 < len(first) < NUM_EXAMPLES
    assert stopped(signal.SIGKILL, len(first) + 1) == -signal.SIGKILL
    with (tmp_path / "broken" / "records.jsonl").open("rb+") as file:  # in the middle of a line
        file.truncate(file.seek(0, 2) - 50)
    process = started(words("broken"))
    process.join(LONGEST)
    assert process.exitcode == 0
    assert answers(tmp_path / "broken") == whole
    rows = [load(tmp_path / name / "leaderboard.json") for name in ("whole", "broken")]
    for one, other in zip(*rows, strict=True):
        assert (one.method, one.n, one.end_tokens) == (other.method, other.n, "0 <|endoftext|>, 2 <|im_end|>")
        assert one.value("mean_acceptance_length") == other.value("mean_acceptance_length")


# Of five tokens. The control is AR at 1.5 times the temperature: the log p of each token is about one nat lower, with a
# standard deviation of about two, so that 400 tokens show it by √400 / 2 = 10 standard errors.
NUM_DRAWS = 80


def test_an_audit_of_two_files(real_models: Path, specbench: Command) -> None:
    """Of two vocabularies: the target's passes are llama.cpp's, and so are the drafter's."""
    code, out, err = specbench(
        "audit", "--task", "gsm8k", "--data", "sample", "--limit", "1", "--target", real_models / "smollm2-135m.gguf",
        "--drafter", real_models / "gemma3-270m.gguf", "--engine", "llama.cpp", "--method", "tli", "--threads", "1",
        "--tokenizer", real_models / "smollm2-135m", "--drafter-tokenizer", real_models / "gemma3-270m",
        "--set", "num_draft_tokens=3", "--set", "generation.max_new_tokens=64", "--draws", NUM_DRAWS, "--json",
    )  # fmt: skip
    assert code == 0, (out, err)
    report = json.loads(out)
    assert (report["engine"], report["dtype"]) == ("llama.cpp", "Q4_1")
    verdicts = {each["method"]: each for each in report["verdicts"]}
    assert verdicts["ar"]["verdict"] == "lossless"
    tli = verdicts["tli"]
    assert tli["verdict"] in ("lossless", "near-tie only", "width only"), tli["reason"]
    assert tli["distribution"]["num_draws"] == NUM_DRAWS and tli["distribution"]["p_value"] > 1e-3
    assert 10 < tli["distribution"]["num_accepted"] < tli["distribution"]["num_drafted"]
    assert report["control"]["distribution"]["p_value"] < FAILS_BELOW
