"""A suite shared by the workers of a real ray cluster on this machine, one of which is killed."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from specbench.core.environment import PACKAGE
from specbench.core.errors import ConfigError
from specbench.models.machine import commit, environment
from specbench.publish import ray_workers
from specbench.publish.suite import MAX_LOSSES
from specbench.publish.workers import (
    JobFinished,
    JobStarted,
    LogLine,
    MachineCheck,
    PoolEvent,
    RunJob,
    TrialRecorded,
    WorkerPool,
    WorkerReady,
    WorkerSettings,
)
from specbench.results.leaderboard import load, write
from tests.support.rows import row

SUITE = {
    "name": "shared",
    "tasks": [{"task": "mgsm", "subsets": ["en"]}],
    "methods": ["sd"],
    "pairs": {"embedded": None},
    "seeds": [0, 1],
    "limit": 4,
    "set": ["generation.max_new_tokens=8"],
}


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two workers need two CPUs")
def test_a_killed_workers_run_goes_to_another_with_its_records(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    path = tmp_path / "shared.yaml"
    path.write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    pids: dict[str, int] = {}
    told: list[tuple[str, str]] = []  # worker and what it tells, from the second phase on
    opened, run = WorkerPool.opened, WorkerPool.run

    def noting(events: Iterator[PoolEvent]) -> Iterator[PoolEvent]:
        for worker, job, event in events:
            if isinstance(event, WorkerReady):
                pids[worker] = event.pid
            yield worker, job, event

    def run_and_kill(self: WorkerPool, jobs: Sequence[RunJob], max_losses: int) -> Iterator[PoolEvent]:
        for worker, job, event in noting(run(self, jobs, max_losses)):
            yield worker, job, event
            if isinstance(event, TrialRecorded) and event.measured and max_losses == MAX_LOSSES:
                told.append((worker, str(event.record.example)))
                if len(told) == 1:  # the next example is being measured
                    actor = int(Path(f"/proc/{pids[worker]}/stat").read_text().rpartition(")")[2].split()[1])
                    os.kill(actor, signal.SIGKILL)

    monkeypatch.setattr(WorkerPool, "opened", lambda self: noting(opened(self)))
    monkeypatch.setattr(WorkerPool, "run", run_and_kill)
    code, _, err = specbench("suite", str(path), "--ray", "local", "--workers", "2")
    assert code == 0, err
    killed = told[0][0]
    assert f"{killed} was lost" in err and "it goes back into the queue with its records" in err
    assert "2 workers share the CPUs of a machine" in err
    folder = tmp_path / "runs" / "suites" / "shared"
    resumed = [line for line in err.splitlines() if ": resuming " in line and " of 4 examples done" in line]
    assert len(resumed) >= 2  # after the first example, and after the loss
    for seed in (0, 1):
        lines = (folder / "embedded" / "mgsm" / f"s{seed}" / "records.jsonl").read_text().splitlines()
        assert Counter(json.loads(line)["example"] for line in lines) == Counter(range(4))
    rows = load(folder / "leaderboard.json")
    assert all(each.device.endswith(", one of 2 workers") for each in rows)
    assert Counter((row.seed, row.method_name, row.n) for row in rows) == Counter(
        {(seed, method, 4): 1 for seed in (0, 1) for method in ("ar", "sd")}
    )
    assert "ray" not in err.replace(str(tmp_path), "").replace("--ray", "").lower()
    code, _, err = specbench("suite", str(path), "--ray", "local", "--workers", "2")  # does not start ray
    assert code == 0 and "2 runs, 2 measured already" in err


def test_gpus_are_one_for_each_worker_and_cpus_are_never_shared() -> None:
    assert ray_workers.worker_needs({"CPU": 8, "GPU": 4}, WorkerSettings("auto", None)) == (
        {"num_gpus": 1, "num_cpus": 0},
        4,
    )
    assert ray_workers.worker_needs({"CPU": 8, "GPU": 4}, WorkerSettings("cpu", 3)) == ({"num_cpus": 3}, 2)
    with pytest.raises(ConfigError, match="--threads"):
        ray_workers.worker_needs({"CPU": 8}, WorkerSettings("auto", None))
    assert (
        ray_workers.number_of_workers(None, {"num_gpus": 1}, 4, 9) == 4
        and ray_workers.number_of_workers(None, {"num_gpus": 1}, 4, 2) == 2
    )
    assert (
        ray_workers.number_of_workers(None, {"num_cpus": 1}, 8, 9) == 1
        and ray_workers.number_of_workers(2, {"num_cpus": 1}, 8, 9) == 2
    )
    with pytest.raises(ConfigError, match="--workers 3: the cluster has 3 CPUs for 2 workers: give 1 to 2"):
        ray_workers.number_of_workers(3, {"num_cpus": 3}, 2, 9)


def test_without_ray_one_line_says_what_to_install(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = specbench("suite", "shared.yaml", "--ray", "local")
    assert code == 2 and "pip install 'specbench-lm[ray]'" in err
    for address, problem in {"127.0.0.1:1": "cannot be reached", "auto": "is not a HOST:PORT",
                             "head": "is not a HOST:PORT",
                             "ray://10.0.0.1:10001": "and a ray:// client"}.items():  # fmt: skip
        with pytest.raises(ConfigError, match=f"--ray {address}: .*{problem}"):
            ray_workers.connect(None, address)
    code, _, err = specbench("suite", "shared.yaml", "--workers", "2")
    assert code == 2 and "--workers 2" in err and "--ray local" in err


def test_machines_that_differ_are_refused(tmp_path: Path) -> None:
    here = environment("cpu", "", "")
    first = WorkerReady("a", 1, "H100", here["versions"], here["commit"])
    machines = MachineCheck(tmp_path / "none.json")
    machines.accept(first)
    assert machines.num_sharing() == 1
    for other, text in (
        (WorkerReady("b", 1, "A100", first.versions, first.commit), "H100 on a and A100 on b"),
        (WorkerReady("b", 1, "H100", {**first.versions, "torch": "1.0"}, first.commit), "torch = 1.0"),
        (WorkerReady("b", 1, "H100", first.versions, "abc"), "commit of specbench = abc"),
    ):
        with pytest.raises(ConfigError, match=text):
            machines.accept(other)


def test_workers_that_share_cpus_are_other_machines_to_a_leaderboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {name: environment("cpu", "", "")["versions"].get(name) for name in ("torch", "transformers")}
    ready = WorkerReady("a", 1, "Some CPU, 1 thread", environment("cpu", "", "")["versions"], commit(PACKAGE.parent))
    for device, num_workers, goes in (("Some CPU, 1 thread", 1, True), ("Some CPU, 1 thread", 2, False),
                                      ("Some CPU, 1 thread, one of 2 workers", 2, True)):  # fmt: skip
        write(tmp_path / "board.json", [row(device=device, versions=versions)])
        machines = MachineCheck(tmp_path / "board.json")
        for _ in range(num_workers):
            machines.accept(ready)
        assert machines.num_sharing() == num_workers
        with nullcontext() if goes else pytest.raises(ConfigError, match="one of 2 workers"):
            machines.check_leaderboard()
    monkeypatch.setattr("specbench.core.environment._num_sharing", 2)
    assert environment("cpu", "", "")["device"].endswith(", one of 2 workers")


def test_a_ray_that_does_not_start_here_is_not_told_to_be_local() -> None:
    def init(*_: Any, **__: Any) -> None:
        raise RuntimeError("The current node timed out during startup\n\nparagraphs")

    with pytest.raises(ConfigError, match=r"did not start here \(The current node timed out during startup\)") as error:
        ray_workers.connect(SimpleNamespace(init=init), "local")
    assert "give `local`" not in str(error.value)
    died = RuntimeError("The actor died because of an error raised in its creation task, x\n\nKeyError: the cause\n")
    assert ray_workers.first_line(died) == "KeyError: the cause"


def test_records_that_cannot_be_kept_end_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the rest of them."""
    from tests.support.processes import job
    from tests.support.records import generation, record

    killed = []
    event = TrialRecorded(record({"ar": generation()}), True)
    ray = SimpleNamespace(
        get=lambda reference: event, kill=killed.append, exceptions=SimpleNamespace(RayError=KeyError)
    )
    actor = SimpleNamespace(measure=SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: [1, 2])))
    worker = ray_workers.RayWorker(ray, "a", WorkerSettings("cpu", 1), {}, actor)

    def full(self: Any, record: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ray_workers.RecordFile, "append", full)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="No space"):
        list(worker.events(job()))
    assert killed == [actor] and worker.actor is None


def test_what_a_host_tells_speaks_of_the_asking_machines_folder(tmp_path: Path) -> None:
    from tests.support.processes import job

    folders: list[Path] = []

    class Process:
        def __init__(self, settings: WorkerSettings) -> None: ...

        def events(self, job: Any) -> Any:
            assert (job.folder / "run.json").read_bytes() == b"{}"
            folders.append(job.folder)
            yield LogLine(f"measuring into {job.folder}")
            yield JobStarted()
            yield JobFinished(f"{job.folder}: broken")

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(ray_workers, "MeasuringProcess", Process)
    there = ray_workers.ActorHost(WorkerSettings("cpu", 1))
    said, planned, finished = there.measure(job(), {"run.json": b"{}"})
    assert folders and not folders[0].exists()
    monkeypatch.undo()
    assert said == LogLine("measuring into x") and planned == JobStarted({"run.json": b"{}"})
    assert finished == JobFinished("x: broken")


def test_all_that_rows_are_made_of_comes_back_from_a_host(tmp_path: Path) -> None:
    for name in ("run.json", "specs.json", "measurements.json", "leaderboard.json", "records.jsonl", "other.txt"):
        (tmp_path / name).write_text(name)
    assert ray_workers.files_of(tmp_path).keys() == {"run.json", "specs.json", "measurements.json", "leaderboard.json"}
    assert ray_workers.files_of(tmp_path, with_records=True)["records.jsonl"] == b"records.jsonl"
