"""training.json, the log, the cost and the curves of a training."""

import csv
import json
from pathlib import Path

import pytest
import torch

from specbench.errors import ConfigError
from specbench.training import cost
from specbench.training.cost import Meter, cpu_joules
from specbench.training.log import Log
from specbench.training.progress import losses
from specbench.training.record import total
from tests.training_toys import NUM_STEPS, train_toy

FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
         "log.csv", "training.json", "curves.png"}  # fmt: skip


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
    assert written["environment"]["versions"]["torch"] == torch.__version__
    with (folder / "log.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["timestamp", "step", "pass", "lang", "r"]
    assert [(int(row["step"]), int(row["pass"])) for row in rows] == [
        (step, number) for step in range(1, NUM_STEPS + 1) for number in (1, 2)
    ]
    assert record.summary().startswith(f"{NUM_STEPS} steps · ")


def test_a_log_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.csv", ("lang", "r"))
    log.cut_back(0)
    log.append(1, 1, [{"lang": "en, US", "r": 1.5}])
    known = log.sync()
    kept = log.path.read_text()
    log.append(1, 2, [{"lang": "sw"}])
    assert log.path.read_text().endswith(",1,2,sw,\n")
    log.cut_back(known)
    assert log.path.read_text() == kept and kept.endswith(',1,1,"en, US",1.5\n')
    with pytest.raises(ConfigError, match="where the checkpoint knows"):
        log.cut_back(known + 1)


def test_energy_is_the_sum_over_packages(tmp_path: Path) -> None:
    assert cpu_joules(tmp_path) is None
    for name, value in {"intel-rapl:0": 2_000_000, "intel-rapl:1": 500_000, "intel-rapl:0:0": 9_000_000}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{value}\n")
    assert cpu_joules(tmp_path) == 2.5
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert cpu_joules(tmp_path) is None


def test_cost_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = iter([10.0, 13.0, 5.0])
    monkeypatch.setattr(cost, "cpu_joules", lambda: next(counters))
    earlier = {"wall_seconds": 100.0, "cpu_seconds": 1.0, "gpu_joules": None, "cpu_joules": 4.0}
    meter = Meter(torch.device("cpu"), earlier)
    counted = meter.cost()
    assert counted["cpu_joules"] == 7.0 and counted["gpu_joules"] is None
    assert 100.0 < (counted["wall_seconds"] or 0) < 200.0
    assert meter.cost()["cpu_joules"] is None  # the counter has wrapped


def test_costs_add_up_and_what_is_unknown_stays_so() -> None:
    added = total([{"wall_seconds": 1.0, "cpu_joules": None}, {"wall_seconds": 2.0, "cpu_joules": 3.0}])
    assert added == {"wall_seconds": 3.0, "cpu_joules": None}


def test_the_worst_losses_are_shown_first() -> None:
    assert losses({"en": 1.0, "sw": 2.0}) == "sw 2.000 en 1.000"
    assert losses({str(number): float(number) for number in range(8)}).endswith("2 2.000 and 2 more")
