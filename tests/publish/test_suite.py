"""Suites: what their files may say, the runs, the estimate, failures that stop nothing, and going on."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.core.progress import format_duration
from specbench.publish.forecast import Forecast, PlannedRun, estimate_line, make_forecast, records_in
from specbench.publish.suite import job_of, run_suite
from specbench.publish.suite_runs import SuiteRun, load_suite, runs_of
from specbench.publish.worker_program import run_job
from specbench.publish.workers import (
    Event,
    JobFinished,
    LogLine,
    MeasuringProcess,
    RunJob,
    WorkerLost,
    WorkerPool,
    WorkerReady,
    WorkerSettings,
)
from specbench.records.generation import Generation
from specbench.results.leaderboard import load, write
from specbench.specs.run_options import RunOptions
from tests.support.processes import job, started
from tests.support.records import generation as make_generation
from tests.support.records import record as make_record
from tests.support.rows import row

SUITE: dict[str, Any] = {
    "name": "mine",
    "tasks": [{"task": "mgsm", "subsets": ["en"]}, "csqa"],
    "methods": ["sd", "fsd"],
    "pairs": {"embedded": None, "other": {"target": "org/target", "drafter": "org/drafter", "dtype": "bfloat16"}},
    "temperatures": [0, 0.7],
    "seeds": [0, 1],
    "limit": 3,
    "set": ["generation.max_new_tokens=8"],
    "exclude": [{"temperature": 0, "seed": 1}, {"pair": "other", "method": "fsd"}, {"task": "csqa", "pair": "other"}],
}


ONE: dict[str, Any] = {"tasks": [{"task": "mgsm", "subsets": ["en"]}], "methods": ["sd"], "pairs": {"a": None},
                       "temperatures": ..., "seeds": ..., "exclude": ...}  # fmt: skip


def runs_in(path: Path, runs: Path) -> list[SuiteRun]:
    return runs_of(load_suite(str(path)), runs=runs)


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    suite = {key: value for key, value in {**SUITE, **changes}.items() if value is not ...}
    path.write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"task": ["mgsm"]}, ["unknown key 'task'", "did you mean 'tasks'"]),
        ({"tasks": ["mgms"]}, ["tasks.0", "'mgms'", "did you mean 'mgsm'"]),
        ({"tasks": [{"task": "mgsm", "subset": ["en"]}]}, ["tasks.0.subset", "did you mean 'subsets'"]),
        ({"tasks": [{"task": "mgsm", "subsets": ["xx"]}]}, ["tasks.0", "no subset 'xx'"]),
        ({"tasks": [{"task": "mgsm", "subsets": ["en", "en"]}]}, ["tasks.0.subsets", "'en' is given twice"]),
        ({"pairs": {"embedded": {"engine": "fast"}}}, ["pairs.embedded.engine", "'fast'", "compiled"]),
        ({"tasks": ["csqa", "csqa"]}, ["tasks: 'csqa' is given twice", "`name`"]),
        ({"methods": ["sdd"]}, ["embedded · mgsm", "'sdd'", "did you mean"]),
        ({"methods": []}, ["methods"]),
        ({"pairs": {"embedded": {"dtype": "float8"}}}, ["pairs.embedded.dtype", "'float8'", "float16"]),
        ({"pairs": {"embedded": {"targt": "x"}}}, ["pairs.embedded.targt", "did you mean 'target'"]),
        ({"temperatures": [0.001]}, ["temperatures.0 = 0.001", "0.01"]),
        ({"temperatures": [0, 0.0]}, ["temperatures", "'0.0' is given twice"]),
        ({"seeds": [-1]}, ["seeds.0 = -1"]),
        ({"set": ["generation.temperature=1"]}, ["set", "delete one of the two"]),
        ({"set": ["generation.max_tokens=1"]}, ["embedded", "generation.max_tokens"]),
        ({"exclude": [{"pair": "othr"}]}, ["exclude.0: pair = 'othr'", "did you mean 'other'"]),
        ({"exclude": [{"temperature": 0.5}]}, ["exclude.0: temperature = '0.5'", "0.7"]),
        ({"exclude": [{}]}, ["exclude", "empty"]),
        ({"methods": ["sd", "hf-sd"], "pairs": {"a": {"engine": "compiled"}}, "exclude": ...},
         ["a · mgsm", "method 'hf-sd'", "engine = 'compiled'", "exclude it"]),
        ({"exclude": [{"pair": ["embedded", "other"]}]}, ["exclude", "no run of the grid is left"]),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, changes: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load_suite(str(written(tmp_path, **{"exclude": ..., **changes})))
    for part in ["mine.yaml", *parts]:
        assert part in str(error.value)


def test_validate_knows_suites(specbench: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, out, _ = specbench("validate", str(written(tmp_path)))
    assert code == 0 and "(suite mine)" in out
    code, _, err = specbench("validate", str(written(tmp_path, name=...)))
    assert code == 2 and "the key 'name' is missing" in err


def test_the_grid_without_what_is_excluded_pair_by_pair(tmp_path: Path) -> None:
    runs = runs_in(written(tmp_path), tmp_path)
    assert [(run.name, run.methods) for run in runs] == [
        *((f"embedded · {task} · {setting}", ("sd", "fsd"))
          for task in ("mgsm", "csqa") for setting in ("t0-s0", "t0.7-s0", "t0.7-s1")),
        *((f"other · mgsm · {setting}", ("sd",)) for setting in ("t0-s0", "t0.7-s0", "t0.7-s1")),
    ]  # fmt: skip
    assert runs[-1].request.command == (
        "specbench run --task mgsm --method sd --subset en --target org/target --drafter org/drafter --limit 3 "
        "--seed 1 --dtype bfloat16 --set generation.max_new_tokens=8 --set generation.temperature=0.7 --output "
        f"{tmp_path}/suites/mine/other/mgsm/t0.7-s1"
    )
    assert runs_of(load_suite(str(written(tmp_path))), RunOptions(limit=1))[0].request.options.limit == 1


def test_rows_are_those_of_a_command_that_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into whatever folder; those of another engine, or number of threads, are not."""
    (run,) = runs_in(written(tmp_path, **ONE), tmp_path)
    own = run.request.options
    for options, is_measured in (
        (own, True), (replace(own, threads=1), True), (replace(own, threads=2), False),
        (replace(own, engine="compiled"), False), (replace(own, overrides=("generation.max_new_tokens=9",)), False),
        (replace(own, subsets=None), False), (replace(own, limit=2), False),
    ):  # fmt: skip
        asked = json.loads(json.dumps(replace(run.request, options=options, output=Path("elsewhere")).settings()))
        rows = [row(task=task, method=method, request=asked) for task, method in run.row_names()]
        assert run.is_measured(rows) is is_measured, options
    settings = json.loads(json.dumps(run.request.settings()))
    rows = [row(task=task, method=method, request=settings) for task, method in run.row_names()]
    monkeypatch.setattr(
        "specbench.publish.suite_runs.component_revisions", lambda tasks, methods: {"drafter a": "local-2"}
    )
    for code, is_measured in (({}, False), ({"drafter a": "local-1"}, False), ({"drafter a": "local-2"}, True)):
        edited = [each.model_copy(update={"options": {**each.options, "code": code}}) for each in rows]
        assert run.is_measured(edited) is is_measured, "the code of a plug-in"
    (run,) = runs_in(written(tmp_path, **{**ONE, "pairs": {"a": {"engine": "compiled"}}}), tmp_path)
    assert "--engine compiled" in run.request.command and run.request.options.engine == "compiled"


def test_a_leaderboard_that_cannot_take_what_is_measured_is_one_error(tmp_path: Path) -> None:
    (run,) = runs_in(written(tmp_path, **ONE), tmp_path)
    run.folder.mkdir(parents=True)
    write(run.folder / "leaderboard.json", [row()])
    forecast, console = Forecast([PlannedRun(run, ("ar", "sd"), 1, is_measured=True)]), Console(quiet=True)
    board = tmp_path / "board.json"
    write(board, [row(device="Other", subset="sw")])
    with pytest.raises(ConfigError, match=r"device = Some CPU, 1 thread, but .*Other"):
        run_suite(forecast, [], board, console)
    board.write_text('{"format"', encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid JSON"):
        run_suite(forecast, [], board, console)
    board.unlink()
    result = run_suite(forecast, [], board, console)
    assert not result.failures and [own for own, _ in result.rows] == [run]


def test_a_dry_run_says_what_would_fail(specbench: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    pairs = {"absent": {"target": "org/target", "drafter": "./nowhere"}, "good": None}
    path = written(tmp_path, **{**ONE, "pairs": pairs, "seeds": [0, 1], "methods": ["ar"]})
    code, out, _ = specbench("suite", str(path), "--dry-run")
    assert code == 0 and "mine · 4 runs" in out and " ar " in out
    lines = [line for line in out.splitlines() if line.startswith("would fail here: ")]
    (line,) = lines
    assert "absent · mgsm · s0 and 1 more: model folder './nowhere' does not exist" in line
    assert make_forecast(runs_in(path, tmp_path)).plan[-1].methods == ("ar",)


def test_an_estimate_that_is_unknown_says_why(tmp_path: Path) -> None:
    (run,) = runs_in(written(tmp_path, **ONE), tmp_path)
    forecast = Forecast([PlannedRun(run, ("ar", "sd"), 1, is_measured=False)])
    assert forecast.first_runs([0]) == []
    assert estimate_line(forecast, 1).startswith("estimated time: unknown")


def test_without_temperatures_tasks_keep_their_own(tmp_path: Path) -> None:
    suite = written(tmp_path, temperatures=..., seeds=..., exclude=..., tasks=["csqa"], pairs={"a": None})
    (run,) = runs_in(suite, tmp_path)
    assert run.name == "a · csqa · s0" and "generation.temperature" not in run.request.command


def generation(tokens: int, seconds: float, first: float = 0.5) -> Generation:
    return make_generation(ttft_seconds=first, decode_seconds=seconds, token_ids=[1] * tokens)


def test_an_estimate_is_what_is_left_at_the_speeds_that_were_measured(tmp_path: Path) -> None:
    runs = runs_in(written(tmp_path, seeds=[0], exclude=...), tmp_path)
    plan = [PlannedRun(run, ("ar", "sd"), 6, is_measured=number == 7) for number, run in enumerate(runs)]
    forecast = Forecast(plan)
    assert forecast.time_left(plan[0]) is None and forecast.total(1).num_unknown == 7
    assert forecast.first_runs(range(7)) == [6, 4, 2, 0]  # one of each pair and task, the first pair's last
    record = make_record({"ar": generation(51, 5.0), "sd": generation(51, 2.0)})
    for number in (0, 0, 2):
        assert forecast.add(number, record) == 8.0
    assert forecast.time_left(plan[0]) == pytest.approx(4 * 8.0)
    forecast.overhead[plan[0].group] = 3.0
    total = forecast.total(1)
    # runs 0 and 1 (3 s beside the answers), 2 and 3 of the other task: 4, 6, 5 and 6 examples
    assert total.seconds == pytest.approx(2 * 3 + 21 * 8.0) and total.num_unknown == 3
    assert forecast.total(2).seconds == pytest.approx(total.seconds / 2)
    assert forecast.total(100).seconds == pytest.approx(3 + 6 * 8.0), "at least the longest run"
    plan[0].methods = ("ar", "sd", "new")
    assert forecast.time_left(plan[0]) == pytest.approx(3 + 4 * 1.5 * 8.0)


def test_seconds_are_shown_as_one_says_them() -> None:
    assert [format_duration(seconds) for seconds in (9.6, 99, 700, 7300)] == ["10 s", "99 s", "12 min", "2 h 2 min"]


def test_examples_are_counted_without_a_model_and_records_are_found(tmp_path: Path) -> None:
    runs = runs_in(written(tmp_path, tasks=["mt_bench", "mgsm"], exclude=[{"pair": "other"}]), tmp_path)
    runs[0].folder.mkdir(parents=True)
    record = json.dumps(make_record({"ar": generation(3, 1.0)}).as_json())
    (runs[0].folder / "records.jsonl").write_text(f"{record}\n{record[:20]}", encoding="utf-8")
    assert len(list(records_in(runs[0].folder))) == 1
    plan = make_forecast(runs).plan
    assert plan[0].num_trials == 8 * 3 * 2 and plan[0].num_left == 47  # eight categories, two turns
    assert plan[-1].num_trials == 11 * 3


READY = WorkerReady("host", 1, "cpu", {}, None)


class Fake:
    """A worker that does what its script says for every job that it gets."""

    def __init__(self, name: str, *script: list[Event], opens: int = 9) -> None:
        self.name, self.script, self.opens, self.num_opened = name, list(script), opens, 0

    def open(self) -> WorkerReady | WorkerLost:
        self.num_opened += 1
        return READY if self.num_opened <= self.opens else WorkerLost("no room")

    def events(self, job: RunJob) -> Iterator[Event]:
        yield from self.script.pop(0) if self.script else [LogLine("at work"), JobFinished(None)]

    def close(self) -> None:
        pass


def ran(workers: list[Fake], num_jobs: int, max_losses: int = 2) -> list[tuple[int, str | None]]:
    ended: list[tuple[int, str | None]] = []
    with WorkerPool(workers) as pool:
        list(pool.opened())
        for _, number, event in pool.run([job()] * num_jobs, max_losses):
            if number is not None and isinstance(event, JobFinished):
                ended.append((number, event.failure))
    return ended


def test_a_lost_workers_job_goes_back_into_the_queue() -> None:
    workers = [Fake(name, [LogLine("begun"), WorkerLost("killed")]) for name in "ab"]
    assert sorted(ran(workers, 3, max_losses=3)) == [(0, None), (1, None), (2, None)]
    assert 3 <= sum(worker.num_opened for worker in workers) <= 4


def test_a_job_that_costs_several_workers_is_given_up_and_stops_no_other() -> None:
    assert ran([Fake("a", [WorkerLost("killed")], [JobFinished(None)], [WorkerLost("killed")])], 2) == [
        (1, None), (0, "its worker was lost 2 times: killed")
    ]  # fmt: skip


def test_a_process_that_failed_badly_is_started_anew() -> None:
    worker = Fake("a", [JobFinished("broken", is_last=True)])
    assert ran([worker], 2) == [(0, "broken"), (1, None)] and worker.num_opened == 2


def test_where_no_worker_is_left_nothing_waits() -> None:
    with pytest.raises(ConfigError, match="no worker is left: no room"):
        ran([Fake("a", [WorkerLost("killed")], opens=1)], 2)


def test_any_error_is_the_failure_of_its_run_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error that is not a mistake of the user, the process is started anew."""

    def broken(*_: Any) -> None:
        raise RuntimeError("the model\nbroke")

    (run,) = runs_in(written(tmp_path, **ONE), tmp_path)
    monkeypatch.setattr("specbench.running.execute.execute", broken)
    assert run_job(job_of(run, 1), None, lambda event: None) == ("RuntimeError: the model broke", False)


CRASHING = """
import ctypes

def decode(prompt_ids, **_):
    ctypes.string_at(0)
"""
METHOD = {"name": "crash", "version": 1, "title": "Ends its process", "num_draft_tokens": 1,
          "decoder": {"type": "external", "entry": "crash.py:decode"}}  # fmt: skip


@pytest.mark.slow
def test_failures_are_the_cells_own_and_the_same_command_goes_on(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.publish.suite.MAX_LOSSES", 1)
    (tmp_path / "crash.py").write_text(CRASHING, encoding="utf-8")
    (tmp_path / "crash.yaml").write_text(yaml.safe_dump(METHOD), encoding="utf-8")
    pairs = {"crashing": None, "absent": {"target": "./nowhere"}, "good": None}
    exclude = [{"pair": "crashing", "method": "sd"}, {"pair": ["good", "absent"], "method": "crash"}]
    path = written(tmp_path, pairs=pairs, methods=["sd", "crash.yaml"], temperatures=[0], seeds=[0], limit=1,
                   tasks=[{"task": "mgsm", "subsets": ["en"]}], exclude=exclude)  # fmt: skip
    code, out, err = specbench("suite", str(path), "--threads", "1")
    assert code == 1, err
    assert "2 of 3 runs FAILED" in out and "speed-up" in out
    assert "crashing · mgsm · t0-s0: its worker was lost: its process ended by SIGSEGV: Fatal Python error" in out
    assert "absent · mgsm · t0-s0: model folder './nowhere' does not exist" in out
    assert "  specbench run --task mgsm --method crash.yaml --subset en --limit 1 --threads 1 --set" in out
    assert "estimated time" in err and "[3/3] good · mgsm · t0-s0: measured in" in err
    folder = tmp_path / "runs" / "suites" / "mine"
    assert {row.method_name for row in load(folder / "leaderboard.json")} == {"ar", "sd"}

    before = (folder / "good" / "mgsm" / "t0-s0" / "records.jsonl").read_bytes()
    path = written(tmp_path, pairs={"good": None}, methods=["sd"], temperatures=[0], seeds=[0], limit=1, exclude=...,
                   tasks=[{"task": "mgsm", "subsets": ["en"]}])  # fmt: skip
    code, out, err = specbench("suite", str(path), "--threads", "1")
    assert code == 0 and "1 run, 1 measured already" in err and "good" in out
    assert (folder / "good" / "mgsm" / "t0-s0" / "records.jsonl").read_bytes() == before


@pytest.mark.slow
def test_interrupted_a_suite_says_how_to_go_on_and_its_process_ends(tmp_path: Path) -> None:
    path = written(tmp_path, pairs={"a": None}, methods=["sd"], temperatures=[0], seeds=[0], limit=24, exclude=...,
                   tasks=[{"task": "mgsm", "subsets": ["en"]}])  # fmt: skip
    records = tmp_path / "runs" / "suites" / "mine" / "a" / "mgsm" / "t0-s0" / "records.jsonl"
    errors = tmp_path / "errors.txt"
    for ending, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        known = len(records.read_bytes().splitlines()) if records.exists() else 0
        process = started(["specbench", "suite", str(path)], tmp_path, errors)
        deadline = time.monotonic() + 100
        while (len(records.read_bytes().splitlines()) if records.exists() else 0) < known + 3:
            assert time.monotonic() < deadline and process.is_alive()
            time.sleep(0.02)
        assert process.pid is not None
        measuring = children(process.pid)
        assert measuring
        os.kill(process.pid, ending)
        process.join(30)
        assert process.exitcode == expected
        err = errors.read_text(encoding="utf-8")
        errors.unlink()
        if ending != signal.SIGKILL:
            folder = Path("runs/suites/mine")
            assert f"interrupted: everything measured is kept in {folder}; the same command resumes it" in err
            assert "Traceback" not in err
        while any(map(alive, measuring)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    lines = records.read_bytes().splitlines()
    examples = [json.loads(line)["example"] for line in lines if line.endswith(b"}")]
    assert len(examples) >= 6 and sorted(examples) == list(range(len(examples)))


def children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for thread in threads for word in thread.read_text().split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_process_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.publish.workers.PROGRAM", "raise OSError('no disk')")
    event = MeasuringProcess(WorkerSettings("cpu", 1)).open()
    assert event == WorkerLost("its process ended with exit code 1: OSError: no disk")
