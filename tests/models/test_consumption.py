"""Energy per token and peak memory: from the counters of the machine to the metrics of a row."""

import mmap
from pathlib import Path

import pytest
import torch

from specbench.models import meters
from specbench.models.meters import Consumption, why_no_cpu_joules
from tests.support.answers import summarize
from tests.support.records import autoregressive, compared, generation

MIB = 2**20
cpu_waits = meters.cpu_waits  # a fixture of all tests replaces it


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The counter of a processor package, in microjoules."""
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in (("name", "package-0"), ("energy_uj", "5000000"), ("max_energy_range_uj", "262143328850")):
        (zone / name).write_text(text)
    monkeypatch.setattr(meters.ProcessorEnergy.__init__, "__defaults__", (tmp_path, lambda: 0.0))
    return zone / "energy_uj"


def test_the_energy_of_the_processors_during_a_generation(package: Path) -> None:
    measured = Consumption("cpu")
    package.write_text("7500000")
    assert measured.fields()["cpu_joules"] == 2.5


def test_what_the_machine_does_not_tell_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters.ProcessorEnergy.__init__, "__defaults__", (tmp_path, lambda: 0.0))
    monkeypatch.setattr(meters, "PROCESS", tmp_path / "no-such-folder")
    assert Consumption("cpu").fields() == {}


def test_why_the_energy_of_the_processor_is_unknown(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = package.parent.parent
    assert why_no_cpu_joules(folder) is None
    read_text = Path.read_text

    def refused(path: Path, *words: object, **more: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", refused)  # root reads every file
    assert why_no_cpu_joules(folder) == (
        f"{package}: may not be read: let root run `chmod -R a+r {folder}/intel-rapl*`"
    )
    (package.parent / "name").unlink()
    monkeypatch.undo()
    for without in (folder, folder / "nothing"):
        assert why_no_cpu_joules(without) == (
            f"{without} has no counter of a processor package (RAPL), as in many virtual machines and outside Linux"
        )


def test_the_time_for_which_threads_waited_for_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all threads, those that began meanwhile too."""

    def waited(**nanoseconds: int) -> None:
        for task, number in nanoseconds.items():
            (tmp_path / "task" / task).mkdir(parents=True, exist_ok=True)
            (tmp_path / "task" / task / "schedstat").write_text(f"12345 {number} 9\n")

    monkeypatch.setattr(meters, "PROCESS", tmp_path)
    monkeypatch.setattr(meters, "cpu_waits", cpu_waits)
    waited(t1=10**9, t2=5)
    measured = Consumption("cpu")
    waited(t1=3 * 10**9, t3=500_000_000)
    assert measured.fields()["cpu_wait_seconds"] == 2.5
    assert "cpu_wait_seconds" not in Consumption(None).fields()
    (tmp_path / "task" / "t1" / "schedstat").unlink()
    assert "cpu_wait_seconds" not in measured.fields(), "a system without it"


@pytest.mark.skipif(not meters.reset_peak_resident_bytes(), reason="the system does not reset the peak")
def test_the_peak_is_of_one_generation_alone() -> None:
    first = Consumption("cpu")
    # New pages of the system: malloc may hand out what an earlier test left resident.
    with mmap.mmap(-1, 64 * MIB) as content:
        content.write(b"1" * (64 * MIB))
        high = first.fields()["peak_host_bytes"]
    second = Consumption("cpu")
    low = second.fields()["peak_host_bytes"]
    assert 40 * MIB < high - low < 200 * MIB


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_peak_of_tensors_on_a_gpu() -> None:
    measured = Consumption("cuda:0")
    before = torch.cuda.memory_allocated(0)
    content = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda:0")
    del content
    torch.cuda.synchronize()
    assert measured.fields()["peak_device_bytes"] >= before + 64 * MIB


def test_joules_per_token_are_of_all_answers_and_peaks_the_largest() -> None:
    ar = [autoregressive(4, gpu_joules=8.0, peak_host_bytes=10), autoregressive(2, gpu_joules=4.0)]
    own = [
        generation([[2, 2, 2, 3]], gpu_joules=4.0, peak_host_bytes=30),
        generation([[2, 1, 0, 1]], gpu_joules=5.0, peak_host_bytes=20),
    ]
    records = [compared(number, *pair) for number, pair in enumerate(zip(ar, own, strict=True))]
    metrics = summarize(records, "m", num_draft_tokens=2, verification={"rule": "rejection"})
    assert metrics["gpu_joules_per_token"].value == pytest.approx(9 / 6)
    assert metrics["gpu_joules_per_token_ar"].value == pytest.approx(12 / 6)
    assert metrics["peak_host_bytes"].value == 30
    assert "peak_host_bytes_ar" not in metrics, "one answer of the baseline does not record it"
    assert not any(name.startswith(("cpu_joules", "peak_device")) for name in metrics)
