"""The load of the machine, which is told before a run measures where it matters."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.core import environment as threads
from specbench.running import machine_load as progress
from specbench.running.machine_load import load_lines, num_gpu_processes

others_load = progress.others_load  # a fixture of all tests replaces it


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return monkeypatch


@pytest.mark.parametrize(("load", "is_busy"), [(0.0, False), (2.4, False), (2.6, True), (11.0, True), (None, False)])
def test_a_line_comes_where_cores_are_missing(cpu: pytest.MonkeyPatch, load: float | None, is_busy: bool) -> None:
    cpu.setattr(progress, "others_load", lambda: load)
    lines = list(load_lines("cpu"))
    assert len(lines) == is_busy
    if lines:
        assert f"other programs use {load:.1f} of its 4 CPU cores, and this run needs 2:" in lines[0]


def test_workers_that_share_a_machine_are_no_other_programs(cpu: pytest.MonkeyPatch) -> None:
    cpu.setattr(progress, "others_load", lambda: 50.0)
    cpu.setattr(threads, "_num_sharing", 3)
    assert list(load_lines("cpu")) == []


def test_the_part_of_this_process_is_not_that_of_others(cpu: pytest.MonkeyPatch) -> None:
    cpu.setattr(progress, "cpu_ticks", lambda: None)
    for load, seconds, expected in ((3.0, 30.0, 2.5), (3.0, 900.0, 1.0), (0.2, 60.0, 0.0)):
        cpu.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        cpu.setattr("time.process_time", lambda seconds=seconds: seconds)
        assert others_load() == pytest.approx(expected)

    def none() -> None:
        raise OSError("no load average")

    cpu.setattr("os.getloadavg", none)
    assert others_load() is None


@pytest.mark.parametrize(("idle", "expected"), [(100, 0.0), (75, 1.0), (0, 4.0)])
def test_cores_that_are_busy_now_count(cpu: pytest.MonkeyPatch, tmp_path: Path, idle: int, expected: float) -> None:
    """The load average of the last minute would count an earlier run of the user too."""
    cpu.setattr("os.getloadavg", lambda: (9.0, 9.0, 9.0))
    stat, read = tmp_path / "stat", progress.cpu_ticks
    stat.write_text("cpu  500 20 80 1000 50 0 0 0 30 0\ncpu0 1 1 1 1\n")
    assert read(stat) == (1050, 1650) and read(tmp_path / "none") is None
    later = f"cpu  {600 - idle} 20 80 {1000 + idle} 50 0 0 0 90 0\n"
    cpu.setattr(progress, "time", SimpleNamespace(sleep=lambda seconds: stat.write_text(later)))  # of this module alone
    cpu.setattr(progress, "cpu_ticks", lambda: read(stat))
    assert others_load() == pytest.approx(expected)


class Nvml:
    """Stands in for the library: the number of processes by GPU, as NVML gives it where the list has no room."""

    def __init__(self, processes: dict[int, int], *, works: bool = True) -> None:
        self.processes, self.works = processes, works

    def nvmlInit_v2(self) -> int:
        return 0 if self.works else 9

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0 if index in self.processes else 2

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, number: Any, found: None) -> int:
        number._obj.value = self.processes[handle.value - 1]
        return 7 if number._obj.value else 0


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "_get_nvml_device_index", lambda index: index)
    monkeypatch.setattr("ctypes.CDLL", lambda name: Nvml({0: 2, 1: 0, 3: 1}))
    return monkeypatch


def test_other_processes_on_the_gpu_are_counted(gpus: pytest.MonkeyPatch) -> None:
    names = ("auto", "cuda:3", "cuda:1", "cuda:2", "cpu", "mps")
    assert [num_gpu_processes(name) for name in names] == [2, 1, 0, 0, 0, 0]
    assert [line for line in load_lines("cuda") if "the GPU is shared with 2 other processes" in line]
    gpus.setattr(torch.cuda, "_get_nvml_device_index", lambda index: 3 - index)  # by CUDA_VISIBLE_DEVICES
    assert num_gpu_processes("cuda") == 1


def test_a_gpu_that_cannot_be_read_ends_no_run(gpus: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    for library in (missing, lambda name: Nvml({0: 2}, works=False), lambda name: object()):
        with gpus.context() as patch:
            patch.setattr("ctypes.CDLL", library)
            assert num_gpu_processes("cuda") == 0

    def unknown(index: int) -> int:
        raise RuntimeError("no such device")

    with gpus.context() as patch:
        patch.setattr(torch.cuda, "_get_nvml_device_index", unknown)
        assert num_gpu_processes("cuda") == 0
    gpus.setattr(torch.cuda, "is_initialized", lambda: True)
    assert num_gpu_processes("cuda") == 0
