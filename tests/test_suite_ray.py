"""A suite shared by the workers of a real ray cluster on this machine, one of which is killed."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.errors import ConfigError
from specbench.results.leaderboard import load
from specbench.suite import cluster
from specbench.suite.jobs import Event, Finished, Opening, Planned, Ready, Recorded, Said
from specbench.suite.machines import Machines
from specbench.suite.watch import Watch

SUITE = {
    "name": "shared",
    "tasks": [{"task": "mgsm", "subsets": ["en"]}],
    "methods": ["sd"],
    "pairs": {"embedded": None},
    "seeds": [0, 1],
    "limit": 6,
    "set": ["generation.max_new_tokens=16"],
}


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two workers need two CPUs")
def test_a_killed_workers_cell_goes_to_another_with_its_records(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    path = tmp_path / "shared.yaml"
    path.write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    pids: dict[str, int] = {}
    told: list[tuple[str, str]] = []  # worker and what it tells, from the second phase on
    tell = Watch.tell

    def tell_and_kill(self: Watch, worker: str, job: int | None, event: Event) -> None:
        tell(self, worker, job, event)
        if isinstance(event, Ready):
            pids[worker] = event.pid
        if isinstance(event, Recorded) and event.measured and not self._first_only:
            told.append((worker, str(event.record["example"])))
            if len(told) == 1:  # the next example is being measured
                actor = int(Path(f"/proc/{pids[worker]}/stat").read_text().rpartition(")")[2].split()[1])
                os.kill(actor, signal.SIGKILL)

    monkeypatch.setattr(Watch, "tell", tell_and_kill)
    code, out, err = specbench("suite", str(path), "--ray", "local", "--workers", "2")
    assert code == 0, err
    killed = told[0][0]
    assert f"{killed} was lost" in err and "it goes back into the queue, with what is recorded of it" in err
    assert f"{killed} was lost" in out
    assert "2 workers share the CPUs and memory" in err
    folder = tmp_path / "runs" / "suites" / "shared"
    resumed = [line for line in err.splitlines() if ": resuming " in line and " of 6 examples are there" in line]
    assert len(resumed) >= 2  # after the first example, and after the loss
    for seed in (0, 1):
        lines = (folder / "embedded" / "mgsm" / f"s{seed}" / "records.jsonl").read_text().splitlines()
        assert Counter(json.loads(line)["example"] for line in lines) == Counter(range(6))
    rows = load(folder / "leaderboard.json")
    assert Counter((row.seed, row.method.partition("@")[0], row.n) for row in rows) == Counter(
        {(seed, method, 6): 1 for seed in (0, 1) for method in ("ar", "sd")}
    )
    assert "ray" not in err.replace(str(tmp_path), "").replace("--ray", "").lower()
    code, _, err = specbench("suite", str(path), "--ray", "local", "--workers", "2")  # does not start ray
    assert code == 0 and "2 cells, 2 of them measured already" in err


def test_gpus_are_one_for_each_worker_and_cpus_are_never_shared() -> None:
    assert cluster.shares({"CPU": 8, "GPU": 4}, Opening("auto", None)) == ({"num_gpus": 1, "num_cpus": 0}, 4)
    assert cluster.shares({"CPU": 8, "GPU": 4}, Opening("cpu", 3)) == ({"num_cpus": 3}, 2)
    with pytest.raises(ConfigError, match="--threads"):
        cluster.shares({"CPU": 8}, Opening("auto", None))
    assert cluster.chosen(None, {"num_gpus": 1}, 4, 9) == 4 and cluster.chosen(None, {"num_gpus": 1}, 4, 2) == 2
    assert cluster.chosen(None, {"num_cpus": 1}, 8, 9) == 1 and cluster.chosen(2, {"num_cpus": 1}, 8, 9) == 2
    with pytest.raises(ConfigError, match="--workers 3: the cluster has 3 CPUs for 2 workers: give 1 to 2"):
        cluster.chosen(3, {"num_cpus": 3}, 2, 9)


def test_without_ray_one_line_says_what_to_install(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = specbench("suite", "shared.yaml", "--ray", "local")
    assert code == 2 and "pip install 'specbench[ray]'" in err
    for address in ("127.0.0.1:1", "nonsense"):
        with pytest.raises(ConfigError, match=f"--ray {address}: cannot be reached"):
            cluster.connect(None, address)
    code, _, err = specbench("suite", "shared.yaml", "--workers", "2")
    assert code == 2 and "--workers 2" in err and "--ray local" in err


def test_machines_that_differ_are_refused(tmp_path: Path) -> None:
    from specbench.results.environment import environment

    here = environment("cpu", "", "")
    first = Ready("a", 1, "H100", here["versions"], here["commit"])
    machines = Machines(tmp_path / "none.json")
    machines.accept(first)
    assert machines.crowded() is None
    for other, text in (
        (Ready("b", 1, "A100", first.versions, first.commit), "H100 on a and A100 on b"),
        (Ready("b", 1, "H100", {**first.versions, "torch": "1.0"}, first.commit), "version of torch = 1.0"),
        (Ready("b", 1, "H100", first.versions, "abc"), "commit of specbench = abc"),
    ):
        with pytest.raises(ConfigError, match=text):
            machines.accept(other)


def test_what_a_host_tells_speaks_of_the_asking_machines_folder(tmp_path: Path) -> None:
    from tests.test_suite import job

    class Process:
        def __init__(self, opening: Opening) -> None: ...

        def events(self, job: Any) -> Any:
            assert (job.folder / "run.json").read_bytes() == b"{}"
            yield Said(f"measuring into {job.folder}")
            yield Planned(1)
            yield Finished(f"{job.folder}: broken")

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(cluster, "MeasuringProcess", Process)
    said, planned, finished = cluster.Host(Opening("cpu", 1)).measure(job(), {"run.json": b"{}"})
    monkeypatch.undo()
    assert said == Said("measuring into x") and planned == Planned(1, {"run.json": b"{}"})
    assert finished == Finished("x: broken")
