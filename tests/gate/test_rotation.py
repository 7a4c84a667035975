"""`specbench check --against`: two processes take turns, resume, and end in one line where one of them fails.

The processes are scripts that speak the worker's protocol and write down whose turn it was; nothing depends on times.
"""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.gate import rotation
from specbench.gate.rotation import Version, measure_interleaved, read_request, request_message, version_notes
from specbench.models.machine import environment
from specbench.models.meters import HOST, HostClock
from specbench.running.request import Request
from specbench.specs.run_options import RunOptions

WORKER = """
import json, pathlib, sys, time
def write(**message): print(json.dumps(message), flush=True)
def read():
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit(1)
write(event="ready", version="0.1.0", commit=None, code="{code}", package="here", versions={{"torch": "2.6"}})
output = pathlib.Path(read()["output"])
name, folder = output.name, output.parent
done = folder / (name + ".done")
first = int(done.read_text()) if done.exists() else 0
write(event="line", line="measuring")
write(event="started", num_blocks={num_blocks})
for block in range(first, {num_blocks}):
    for generation in range(2):
        write(event="waiting", block=block)
        read()
        with (folder / "turns").open("a") as file:
            file.write(f"{{name[0]}}{{block}} ")
        if (name, block) == ("{name}", 1):
            {deed}
    done.write_text(str(block + 1))
write(event="waiting", block={num_blocks})
read()
write(event="finished", failure=None)
"""
REQUEST = Request(["mgsm"], ["sd"], RunOptions(limit=4, subsets=("en",), overrides=("a=1",)), "specbench check")


@pytest.fixture
def workers(monkeypatch, tmp_path):
    """Makes both processes such scripts. `deed`: what the process `name` does in its second block."""
    started = []

    def make(deed="pass", name="candidate", num_blocks=4, program=WORKER):
        class Side(rotation.Side):
            def __init__(self, own, python, folder=None):
                super().__init__(own, sys.executable, folder)
                size = num_blocks[own == "candidate"] if isinstance(num_blocks, tuple) else num_blocks
                self._program = program.format(code=own, name=name, deed=deed, num_blocks=size)
                self.name = own
                started.append(self)

            def close(self):
                self.process = self._process or self.process
                super().close()

            process = None

        monkeypatch.setattr(rotation, "Side", Side)
        return started

    return make


def measure(folder, said=None):
    request = Request(**{**vars(REQUEST), "output": folder})
    return measure_interleaved(request, sys.executable, (said if said is not None else []).append)


def turns_in(folder):
    return (folder / "turns").read_text().split()


def test_two_versions_take_turns_a_b_b_a_and_one_of_them_measures_at_a_time(workers, tmp_path, capsys):
    workers(num_blocks=3)
    said = []
    found = measure(tmp_path / "both", said)
    assert turns_in(tmp_path / "both") == ["b0", "c0", "c0", "b0", "b1", "c1", "c1", "b1", "b2", "c2", "c2", "b2"]
    assert (found.baseline, found.candidate) == (tmp_path / "both" / "baseline", tmp_path / "both" / "candidate")
    assert said[0] == "measuring interleaved: 0 of 3" and said[-1] == "measuring interleaved: 3 of 3"
    assert "baseline: measuring\n" in capsys.readouterr().err


def test_both_versions_print_the_date_of_the_baseline(workers, monkeypatch, tmp_path, capsys):
    workers(num_blocks=1)
    sent, message = [], rotation.request_message
    monkeypatch.setattr(rotation, "request_message", lambda *given: sent.append(given[0].options) or message(*given))
    request = Request(["mgsm"], ["sd"], RunOptions(template_date="today"), "", output=tmp_path / "both")
    measure_interleaved(request, sys.executable, [].append)
    assert {each.template_date for each in sent} == {date.today().isoformat()}
    (tmp_path / "both" / "baseline").mkdir()
    (tmp_path / "both" / "baseline" / "run.json").write_text('{"template_date": "2026-01-31"}')
    sent.clear()
    measure_interleaved(request, sys.executable, [].append)
    assert {each.template_date for each in sent} == {"2026-01-31"}
    assert "began on 2026-01-31, which its prompts keep" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["baseline", "candidate"])
def test_the_baseline_may_have_a_folder_of_its_own(workers, tmp_path, monkeypatch, name):
    """Relative paths then name other files there; the results are in one place."""
    (tmp_path / "base").mkdir()
    monkeypatch.chdir(tmp_path)
    workers("(folder / 'place').write_text(str(pathlib.Path.cwd()))", name)
    request = Request(**{**vars(REQUEST), "output": Path("both")})
    found = measure_interleaved(request, sys.executable, [].append, Path("base"))
    assert found.baseline == Path("both/baseline")
    assert (tmp_path / "both/place").read_text() == str(tmp_path / "base" if name == "baseline" else tmp_path)
    notes = version_notes(
        {side: Version("1", None, "c", "p", {}) for side in ("baseline", "candidate")}, against_folder=Path("base")
    )
    assert list(notes)[2:] == ["baseline: files of base"], "the same code does not make every difference noise"


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("sys.exit('no memory')", "candidate: its process ended with exit code 1: no memory"),
        ("time.sleep(100)", "candidate: sent nothing for 1 s, and was ended"),
        ("print('not JSON', flush=True)", "candidate: sent a line that is not JSON: b'not JSON"),
        ("write(event='finished', failure='no rows')", "candidate: no rows"),
    ],
)
def test_a_process_that_fails_ends_both_in_one_line_and_the_same_command_resumes(
    workers, tmp_path, monkeypatch, deed, message
):
    folder = tmp_path / "both"
    monkeypatch.setattr(rotation, "TURN_SECONDS", 1.0 if "sleep" in deed else 60.0)
    started = workers(deed)
    with pytest.raises(ConfigError) as caught:
        measure(folder)
    kept = f"what is measured is kept in {folder}; the same command resumes it"
    assert str(caught.value).startswith(message) and str(caught.value).endswith(kept)
    assert "\n" not in str(caught.value)
    assert all(side.process.poll() is not None for side in started), "no process is left"
    monkeypatch.setattr(rotation, "TURN_SECONDS", 60.0)
    (folder / "turns").unlink()
    workers()
    (folder / "baseline.done").write_text("2")
    (folder / "candidate.done").write_text("1")
    measure(folder)
    found = turns_in(folder)
    assert found[:2] == ["c1", "c1"], "the side that is behind goes on alone"
    assert found[2:6] in (["b2", "c2", "c2", "b2"], ["c2", "b2", "b2", "c2"])


def test_an_interrupt_ends_both(workers, tmp_path):
    started = workers()

    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_interleaved(Request(**{**vars(REQUEST), "output": tmp_path / "both"}), sys.executable, interrupt)
    assert len(started) == 2 and all(side.process.poll() is not None for side in started)


def test_versions_that_measure_other_examples_are_refused(workers, tmp_path):
    workers(num_blocks=(3, 5))
    with pytest.raises(ConfigError, match=r"the two versions measure other examples: [35] and [35] of them"):
        measure(tmp_path / "both")


def test_a_folder_of_other_code_is_refused(workers, tmp_path):
    workers()
    measure(tmp_path / "both")
    workers(program=WORKER.replace('code="{code}"', 'code="changed"'))
    with pytest.raises(ConfigError, match=r"another configuration \(baseline.code: .baseline. → .changed."):
        measure(tmp_path / "both")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import specbench_of_the_past", "baseline: its process ended with exit code 1: ModuleNotFoundError"),
        *(
            (
                f"raise ImportError(\"No module named 'specbench{name}'\")",
                f"baseline: has no specbench that takes part in checks: install {rotation.FIRST_VERSION} or",
            )
            for name in ("", ".publish.turns")
        ),
    ],
)
def test_an_environment_without_a_version_that_can_is_one_line(workers, tmp_path, program, message):
    workers(program=program)
    with pytest.raises(ConfigError) as caught:
        measure(tmp_path / "both")
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert not (tmp_path / "both").exists()


def test_an_interpreter_that_is_not_there_is_named():
    words = ["check", "--against", "nowhere/python", "--task", "mgsm", "--method", "sd"]
    code = f"import sys; sys.argv = ['specbench', *{words}]\nfrom specbench.cli import main\ntry: main()\n"
    code += "except SystemExit as end: assert end.code == 2 and 'torch' not in sys.modules, 'heavy imports'\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "--against nowhere/python: no such program" in done.stderr, done.stderr


def test_a_request_arrives_as_it_was_sent_and_an_unknown_option_is_named(tmp_path):
    message = json.loads(json.dumps(request_message(REQUEST, tmp_path)))
    assert read_request(message) == Request(**{**vars(REQUEST), "output": tmp_path})
    assert set(message["options"]) == {"limit", "subsets", "overrides"}, "another version may not know the rest"
    message["options"]["of_the_future"] = 1
    with pytest.raises(ConfigError, match="--of-the-future: this version of specbench has no such option"):
        read_request(message)


def test_versions_of_packages_that_differ_are_named():
    before, now = (
        Version("0.1.0", "0123456789abcdef", code, "/env", {"torch": torch, "python": "3.11"})
        for code, torch in (("a", "2.6"), ("b", "2.7"))
    )
    notes = list(version_notes({"baseline": before, "candidate": now}))
    assert notes[0] == "baseline: specbench 0.1.0, commit 0123456789ab, in /env"
    assert notes[2:] == ["torch 2.6 in the baseline, 2.7 in the candidate"]
    same = {"baseline": before, "candidate": before}
    assert list(version_notes(same))[2:] == ["both have the same code, so every difference is noise"]
    edited = "components.drafter mine: local-1 → local-2"
    assert list(version_notes(same, [edited]))[2:] == [edited]
    others = {"baseline": before, "candidate": replace(before, versions={"torch": "2.7", "python": "3.11"})}
    assert list(version_notes(others))[2:] == ["torch 2.6 in the baseline, 2.7 in the candidate"]


def test_an_edited_plug_in_is_other_code(monkeypatch):
    before = rotation.this_version().code
    monkeypatch.setattr(rotation, "plugins_digest", lambda: "edited")
    assert before != rotation.this_version().code == f"{rotation.package_digest()}-edited"


def test_edited_files_of_a_request_are_measured_into_another_folder_and_their_code_is_compared(workers, tmp_path):
    method, code = tmp_path / "mine.yaml", tmp_path / "mine.py"
    method.write_text("name: mine\ndecoder: {type: external, entry: 'mine.py:decode'}\n")
    code.write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")
    request = Request(**{**vars(REQUEST), "methods": [str(method), "sd"]})
    found = [rotation.files_of(request)]
    for file in (method, code, tmp_path / "helper.py"):
        file.write_text(file.read_text() + "# edited\n")
        found.append(rotation.files_of(request))
    assert len({str(each) for each in found}) == 4
    for side, revision in (("baseline", "local-1"), ("candidate", "local-2")):
        (tmp_path / "both" / side).mkdir(parents=True)
        (tmp_path / "both" / side / "run.json").write_text(json.dumps({"seed": 0, "code": {"mine": revision}}))
    workers()
    assert measure(tmp_path / "both").notes[-1] == 'code.mine: "local-1" → "local-2"'


def test_the_worker_waits_before_every_warm_up_and_every_generation(monkeypatch, tiny_pair, tmp_path):
    target, drafter = tiny_pair
    options = RunOptions(
        limit=2, subsets=("en",), target=target, drafter=drafter, data="sample", device="cpu",
        overrides=("generation.max_new_tokens=4",),
    )  # fmt: skip
    request = Request(["mgsm"], ["sd"], options, "specbench check")

    def events_of(num_turns):
        sent, lines = io.BytesIO(), [request_message(request, tmp_path / "run"), *[{}] * num_turns]
        received = io.BytesIO("".join(json.dumps(line) + "\n" for line in lines).encode())
        monkeypatch.setattr(rotation, "take_streams", lambda: (received, sent))
        rotation.main()
        assert received.read() == b""
        return [json.loads(line) for line in sent.getvalue().splitlines()]

    monkeypatch.setattr(rotation, "send_lines", lambda send: None)
    monkeypatch.setattr(HostClock, "leave_out_waits", lambda self: None)
    monkeypatch.setattr("specbench.running.warm_up.NUM_NEW_TOKENS", 4)
    events = events_of(6)
    assert [event["event"] for event in events] == ["ready", "started", *["waiting"] * 6, "finished"]
    assert [event["block"] for event in events[2:-1]] == [0, 0, 0, 1, 1, 2] and events[1]["num_blocks"] == 2
    assert events[-1]["failure"] is None and (tmp_path / "run" / "leaderboard.json").is_file()
    again = events_of(1)
    assert [event.get("block") for event in again] == [None, None, 2, None], "what is measured needs no turn"


def test_a_worker_whose_asking_process_is_gone_ends(monkeypatch):
    monkeypatch.setattr(rotation, "take_streams", lambda: (io.BytesIO(), io.BytesIO()))
    monkeypatch.setattr(rotation, "send_lines", lambda send: None)
    monkeypatch.setattr(HostClock, "leave_out_waits", lambda self: None)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        rotation.main()


def test_waits_for_a_cpu_are_left_out_where_the_system_counts_them(tmp_path, monkeypatch):
    waits, clock = tmp_path / "schedstat", HostClock()
    monkeypatch.setattr("specbench.models.meters.time.perf_counter", lambda: 10.0)
    clock.leave_out_waits(tmp_path / "absent")
    assert clock.now() == 10.0 and not clock.leaves_out_waits
    waits.write_text("not counted\n")
    clock.leave_out_waits(waits)
    assert clock.now() == 10.0 and not clock.leaves_out_waits
    waits.write_text("7000000000 4000000000 12\n")
    clock.leave_out_waits(waits)
    assert clock.now() == 6.0 and clock.leaves_out_waits


def test_the_device_of_a_row_says_that_waits_are_left_out(monkeypatch):
    assert "waits" not in environment("cpu", "", "")["device"]
    monkeypatch.setattr(HOST, "_file", 0)
    assert environment("cpu", "", "")["device"].endswith(", waits for a CPU left out")


MISTAKES = {
    "--task: has no effect without --against": ["--task", "mgsm", "--baseline", "a", "--candidate", "b"],
    "--limit: has no effect without --against": ["--limit", "3", "--baseline", "a", "--candidate", "b"],
    "--candidate is missing: give --baseline and --candidate, or --against": ["--baseline", "a"],
    "--baseline: has no effect with --against": ["--against", "python", "--baseline", "a"],
    "--method is missing: give --baseline and --candidate, or ": [
        "--against",
        "python",
        "--task",
        "mgsm",
    ],
    "--against-folder here: needs --against": ["--baseline", "a", "--against-folder", "here"],
    "--against-folder nowhere: no such folder": ["--against", sys.executable, "--against-folder", "nowhere"],
    "--against nowhere: no such program": ["--against", "nowhere", "--task", "mgsm", "--method", "sd"],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line(specbench, message):
    code, out, err = specbench("check", *MISTAKES[message])
    assert code == 2 and out == "" and len(err.strip().splitlines()) == 1 and message in err


@pytest.mark.slow
def test_this_version_against_itself(specbench, tiny_pair, tmp_path):
    """With real processes. Any fall of a speed is allowed, as times are those of the machine."""
    python = tmp_path / "python"
    here = Path(rotation.__file__).parents[2]
    python.write_text(f'#!/bin/sh\nPYTHONPATH={here} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = [
        "check", "--against", python, "--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "16", "--target",
        tiny_pair[0], "--drafter", tiny_pair[1], "--data", "sample", "--set", "generation.max_new_tokens=8", "--device",
        "cpu", "--output", "both", "--max-regression", "99%",
    ]  # fmt: skip
    code, out, err = specbench(*words)
    assert code == 0, err
    assert "both have the same code" in out and "speed in tokens/s" in out
    records = [(tmp_path / "both" / side / "records.jsonl").read_text() for side in ("baseline", "candidate")]
    assert [len(text.splitlines()) for text in records] == [16, 16]
    assert specbench(*words)[0] == 0
    assert [(tmp_path / "both" / side / "records.jsonl").read_text() for side in ("baseline", "candidate")] == records
