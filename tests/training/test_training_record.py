"""training.json, the log, the cost and the curves of a training."""

import csv
import json
from pathlib import Path
from threading import Event

import pytest
import torch
from transformers import AutoModelForCausalLM

from specbench.models import meters as processor_energy
from specbench.models.meters import MAX_WATTS, CostMeter, ProcessorEnergy
from specbench.training.output import total_cost
from specbench.training.train import losses_text
from tests.support import tiny
from tests.support.training_toys import NUM_STEPS, train_toy, weights

FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
         "log.csv", "training.json"}  # fmt: skip


def test_a_finished_folder_holds_the_checkpoint_and_its_record(tmp_path: Path) -> None:
    record = train_toy(tmp_path, learning_rate=(0.01, 0.02))
    folder = tmp_path / "out"
    assert {path.name for path in folder.iterdir()} == FILES
    written = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    assert written["settings"]["num_steps"] == NUM_STEPS and written["settings"]["distill"]["top_k"] == 20
    assert [curve["learning_rate"] for curve in written["curves"]] == [0.01, 0.02]
    steps = written["curves"][record.chosen]["steps"]
    assert [point["step"] for point in steps] == list(range(1, NUM_STEPS + 1))
    assert set(steps[0]["loss"]) == {"en", "sw"} and steps[0]["num_tokens"] == 64
    assert list(written["curves"][0]["validation"]) == ["2", "4", "5"]
    assert written["cost"]["wall_seconds"] > 0 and written["cost"]["gpu_joules"] is None
    assert written["environment"]["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    with (folder / "log.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["timestamp", "step", "pass", "lang", "r"]
    assert [(int(row["step"]), int(row["pass"])) for row in rows] == [
        (step, number) for step in range(1, NUM_STEPS + 1) for number in (1, 2)
    ]
    assert record.summary().startswith(f"{NUM_STEPS} steps · ")


def test_the_record_names_the_dtype_that_is_stored(tmp_path: Path) -> None:
    source = tmp_path / "drafter"
    tiny.save(source, num_hidden_layers=1, hidden_size=16, intermediate_size=16)
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(source)
    for name, settings in (("out", {"num_steps": 1}), ("adapters", {"num_steps": 1, "lora": {"rank": 2}})):
        record = train_toy(tmp_path, name, source=source, **settings)
        assert record.models["stored_dtype"] == "bfloat16"
        assert {value.dtype for value in weights(tmp_path / name).values()} == {torch.bfloat16}


RANGE = 262_143_328_850  # microjoules


def zone(folder: Path, place: str, name: str, joules: float) -> None:
    """Set a counter; it begins anew at its range."""
    (folder / place).mkdir(exist_ok=True)
    (folder / place / "name").write_text(f"{name}\n")
    (folder / place / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (folder / place / "energy_uj").write_text(f"{int(joules * 1e6) % RANGE}\n")


def test_energy_is_the_sum_over_packages(tmp_path: Path) -> None:
    assert ProcessorEnergy(tmp_path).joules() is None
    places = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:2": "psys",
              "intel-rapl:0:0": "core", "intel-rapl:1:0": "dram"}  # fmt: skip
    for place, name in places.items():
        zone(tmp_path, place, name, 7.0)
    energy = ProcessorEnergy(tmp_path)
    assert energy.joules() == 0.0
    for place, name in places.items():
        zone(tmp_path, place, name, 9.0 if name == "package-0" else 7.5)
    assert energy.joules() == 2.5
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert energy.joules() is None
    zone(tmp_path, "intel-rapl:1", "package-1", 8.0)
    assert energy.joules() is None  # what has passed in between stays unknown


def test_a_counter_may_begin_anew_as_often_as_it_is_read_between(tmp_path: Path) -> None:
    times = iter([0.0, *(100.0 * reading for reading in range(1, 11))])
    zone(tmp_path, "intel-rapl:0", "package-0", 200_000)
    energy = ProcessorEnergy(tmp_path, lambda: next(times))
    for reading in range(1, 11):  # 900 W: three times round
        zone(tmp_path, "intel-rapl:0", "package-0", 200_000 + 90_000 * reading)
        assert energy.joules() == pytest.approx(90_000 * reading)


def test_energy_is_unknown_where_a_counter_may_have_gone_round_unseen(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 10)
    times = iter([0.0, RANGE / 1e6 / MAX_WATTS + 1])
    energy = ProcessorEnergy(tmp_path, lambda: next(times))
    zone(tmp_path, "intel-rapl:0", "package-0", 20 + RANGE / 1e6)  # it has passed its start and looks like 10 J
    assert energy.joules() is None


def test_a_training_reads_its_counters_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_energy, "SECONDS", 0.001)
    monkeypatch.setattr(processor_energy, "MAX_WATTS", 0.0)  # however long this machine takes
    seen = Event()
    counts = iter(range(0, 40 * 3, 40))

    def read(folder: Path) -> dict[str, tuple[int, int]]:
        found = next(counts, None)
        if found is None:
            seen.set()
        return {"package": ((80 if found is None else found) * 10**6 % (60 * 10**6), 60 * 10**6)}

    monkeypatch.setattr(processor_energy, "package_counters", read)
    with CostMeter(torch.device("cpu")) as meter:
        assert seen.wait(60)
        assert meter.cost()["cpu_joules"] == 80.0  # 0, 40 and 80 J; one reading at the end would be 20


def test_cost_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = iter([10, 13])
    monkeypatch.setattr(processor_energy, "package_counters", lambda _: {"package": (next(counters) * 10**6, 10**12)})
    earlier = {"wall_seconds": 100.0, "cpu_seconds": 1.0, "gpu_joules": None, "cpu_joules": 4.0}
    counted = CostMeter(torch.device("cpu"), earlier).cost()
    assert counted["cpu_joules"] == 7.0 and counted["gpu_joules"] is None
    assert 100.0 < (counted["wall_seconds"] or 0) < 200.0


def test_costs_add_up_and_what_is_unknown_stays_so() -> None:
    added = total_cost([{"wall_seconds": 1.0, "cpu_joules": None}, {"wall_seconds": 2.0, "cpu_joules": 3.0}])
    assert added == {"wall_seconds": 3.0, "cpu_joules": None}


def test_the_worst_losses_are_shown_first() -> None:
    assert losses_text({"en": 1.0, "sw": 2.0}) == "sw 2.000 en 1.000"
    assert losses_text({str(number): float(number) for number in range(8)}).endswith("2 2.000 and 2 more")
