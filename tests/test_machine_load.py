"""The load of the machine, which is told before a run measures where it matters."""

import pytest
import torch

from specbench.core import threads
from specbench.running import machine_load
from specbench.running.machine_load import load_lines, num_gpu_processes

PROCESSES = (
    "GPU:0\nprocess         71 uses      500.000 MB GPU memory\nprocess         72 uses      1.000 MB GPU memory"
)
others_load = machine_load.others_load  # other tests replace it


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return monkeypatch


@pytest.mark.parametrize(("load", "is_busy"), [(0.0, False), (2.4, False), (2.6, True), (11.0, True), (None, False)])
def test_a_line_comes_where_cores_are_missing(cpu: pytest.MonkeyPatch, load: float | None, is_busy: bool) -> None:
    cpu.setattr(machine_load, "others_load", lambda: load)
    lines = list(load_lines("cpu"))
    assert len(lines) == is_busy
    if lines:
        assert f"a load of {load:.1f} on its 4 CPU cores, and this run computes on 2 of them" in lines[0]


def test_workers_that_share_a_machine_are_no_other_programs(cpu: pytest.MonkeyPatch) -> None:
    cpu.setattr(machine_load, "others_load", lambda: 50.0)
    cpu.setattr(threads, "_num_sharing", 3)
    assert list(load_lines("cpu")) == []


def test_the_part_of_this_process_is_not_that_of_others(cpu: pytest.MonkeyPatch) -> None:
    for load, seconds, expected in ((3.0, 30.0, 2.5), (3.0, 900.0, 1.0), (0.2, 60.0, 0.0)):
        cpu.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        cpu.setattr("time.process_time", lambda seconds=seconds: seconds)
        assert others_load() == pytest.approx(expected)

    def none() -> None:
        raise OSError("no load average")

    cpu.setattr("os.getloadavg", none)
    assert others_load() is None


def test_other_processes_on_the_gpu_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "list_gpu_processes", lambda index: asked.append(index) or PROCESSES)
    assert [num_gpu_processes(name) for name in ("auto", "cuda:3", "cpu", "mps")] == [2, 2, 0, 0] and asked == [0, 3]
    assert [line for line in load_lines("cuda") if "the GPU is shared with 2 other processes" in line]
    for text in ("GPU:0\nno processes are running", "pynvml module not found, please install nvidia-ml-py"):
        monkeypatch.setattr(torch.cuda, "list_gpu_processes", lambda index, text=text: text)
        assert num_gpu_processes("cuda") == 0


def test_a_gpu_that_cannot_be_read_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(index: int) -> str:
        raise RuntimeError("NVML")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "list_gpu_processes", failing)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert num_gpu_processes("cuda") == 0
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "list_gpu_processes", lambda index: PROCESSES)
    assert num_gpu_processes("cuda") == 0
