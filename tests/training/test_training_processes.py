"""A training on two processes: the same losses and weights as on one, as both have the same batches."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn

from specbench.training.loop import LossPart
from tests.support import tiny
from tests.support.training_toys import ToyObjective, processes, train_toy, weights

Run = Callable[..., tuple[int, str, str]]


def in_two_processes(function: Callable[[], object]) -> None:
    """Run a function in two processes with the variables that torchrun gives to them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def member(rank: int) -> Callable[[], None]:
        def run() -> None:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                              MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))  # fmt: skip
            AcceleratorState._reset_state(True)
            function()
            torch.distributed.destroy_process_group()

        return run

    assert processes([member(0), member(1)]) == [0, 0]


def check_alike(one: Path, other: Path) -> None:
    """The losses of every step, the validation ones and the weights agree but for the order of sums."""
    a, b = (json.loads((folder / "training.json").read_text())["curves"][0] for folder in (one, other))
    assert [step["num_tokens"] for step in a["steps"]] == [step["num_tokens"] for step in b["steps"]]
    for first, second in zip(a["steps"], b["steps"], strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-4)
    assert a["validation"] == pytest.approx(b["validation"], rel=1e-4)
    made, expected = weights(one), weights(other)
    assert made.keys() == expected.keys()
    for name, value in made.items():
        torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-4)


class Counting(ToyObjective):
    """Writes down how many parts this process has computed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def validation(self, drafter: nn.Module) -> float | None:
        (self.folder / f"parts-{os.environ.get('RANK')}").write_text(str(self.num_trained))
        return super().validation(drafter)

    num_trained = 0

    def parts(self, drafter: nn.Module, number: int) -> list[LossPart]:
        return [LossPart(part.groups, part.weight, self.counted(part)) for part in super().parts(drafter, number)]

    def counted(self, part: LossPart) -> Callable[[nn.Module], torch.Tensor]:
        def losses(drafter: nn.Module) -> torch.Tensor:
            self.num_trained += 1
            return part.losses(drafter)

        return losses


@pytest.mark.slow
def test_two_processes_share_the_parts_and_make_the_same_updates(tmp_path: Path) -> None:
    train_toy(tmp_path, "one", Counting(tmp_path))
    in_two_processes(lambda: train_toy(tmp_path, "two", Counting(tmp_path)))
    check_alike(tmp_path / "one", tmp_path / "two")
    counts = {path.name: int(path.read_text()) for path in tmp_path.glob("parts-*")}
    assert counts == {"parts-None": 20, "parts-0": 10, "parts-1": 10}
    train_toy(tmp_path, "other", ToyObjective(weights=(0.5, 0.5)))
    with pytest.raises(AssertionError):
        check_alike(tmp_path / "one", tmp_path / "other")


@pytest.mark.slow
def test_scdf_on_two_processes_is_that_of_one(specbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.training.train.cache_folder", lambda: tmp_path / "cache")
    models = {
        name: str(tiny.save(tmp_path / name, hidden_size=16, num_hidden_layers=1)) for name in ("target", "draft")
    }
    texts = []
    for name in ("en", "sw"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} line {number}\n" for number in range(6)))
        texts.append(f"--text={name}={tmp_path / name}.txt")

    def trained(output: str) -> None:
        code, _, err = specbench(
            "train", "scdf", "--target", models["target"], "--drafter", models["draft"], "--output", output, *texts,
            "--device", "cpu", "--threads", "1", "--num-steps", "2", "--learning-rate", "1e-2",
            "--set", "max_new_tokens=4", "--set", "scdf.prompts_per_language=4", "--set", "scdf.mini_batch=2",
        )  # fmt: skip
        assert code == 0, err

    trained("one")
    in_two_processes(lambda: trained("two"))
    check_alike(tmp_path / "one", tmp_path / "two")
    logs = [(tmp_path / name / "log.csv").read_text().splitlines() for name in ("one", "two")]
    assert len(logs[0]) == len(logs[1]) == 1 + 2 * 4 * 2
