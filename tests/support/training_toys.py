"""A small objective for the training loop, and trainings of a tiny drafter with it."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from specbench.models.causal_lm import CausalLM
from specbench.models.loading import load_model
from specbench.specs.components import build
from specbench.training.loop import GroupLosses, LossPart
from specbench.training.output import OutputFolder, TrainingRecord
from specbench.training.spec import TrainSpec
from specbench.training.train import make_accelerator, train_drafter
from tests.support import tiny

NUM_STEPS = 5
NUM_PASSES = 2 * NUM_STEPS


class ToyObjective:
    """Two languages of random token sequences, drawn anew at every pass. `before`: called at the start of each."""

    columns = ("lang", "r")

    def __init__(
        self, before: Callable[[int], None] | None = None, weights: tuple[float, float] = (0.75, 0.25)
    ) -> None:
        self.before, self.weights = before, weights
        self.num_parts = 0

    def parts(self, drafter: nn.Module, number: int) -> list[LossPart]:
        assert not drafter.training
        if self.before is not None:
            self.before(number)
        return [
            LossPart([(language, 16)], weight, self.losses(2 * number + place))
            for place, (language, weight) in enumerate(zip(("en", "sw"), self.weights, strict=True))
        ]

    def losses(self, seed: int) -> Callable[[nn.Module], Tensor]:
        ids = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(seed))

        def of_tokens(drafter: nn.Module) -> Tensor:
            self.num_parts += 1
            logits = drafter(input_ids=ids, use_cache=False).logits[:, :-1].float()
            return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")

        return of_tokens

    @torch.no_grad()
    def rows(self, drafter: nn.Module, number: int, losses: GroupLosses) -> list[dict[str, Any]]:
        return [{"lang": "en", "r": float(self.losses(number)(drafter).mean())}]

    @torch.no_grad()
    def validation(self, drafter: nn.Module) -> float | None:
        return float(self.losses(10**6)(drafter).mean())


def spec_of(**settings: Any) -> TrainSpec:
    """Settings of a training of a few steps on the CPU."""
    given = {"kind": "distill", "data": {"text": {"en": "x.txt"}}, "output": "x", "num_steps": NUM_STEPS, "warmup": 1,
             "learning_rate": 0.01, "gradient_accumulation": 2, "checkpoint_every": 2, "dtype": "float32",
             "device": "cpu"}  # fmt: skip
    return build(TrainSpec, {**given, **settings})


@cache
def saved_drafter() -> TemporaryDirectory[str]:
    """The folder of a random drafter, there as long as the process of the tests."""
    folder = TemporaryDirectory(prefix="specbench-drafter-")
    tiny.save(Path(folder.name), num_hidden_layers=1, hidden_size=16, intermediate_size=16)
    return folder


def drafter(source: Path | None = None) -> CausalLM:
    """The saved drafter, or that of another folder."""
    return load_model(str(source or saved_drafter().name), device="cpu")


def untrained() -> dict[str, torch.Tensor]:
    """The weights of the drafter that a training begins with."""
    return weights(Path(saved_drafter().name))


def train_toy(
    folder: Path, name: str = "out", objective: ToyObjective | None = None, source: Path | None = None, **settings: Any
) -> TrainingRecord:
    """Train a tiny drafter into `folder / name`, or resume."""
    spec = spec_of(**settings)
    output = OutputFolder(folder / name)
    output.check()
    model = drafter(source)
    identity = {"settings": spec.model_dump(mode="json", exclude={"checkpoint_every"})}
    with output.held(identity) if make_accelerator(spec).is_main_process else nullcontext():
        num_steps = spec.num_steps or NUM_STEPS
        return train_drafter(model, objective or ToyObjective(), spec, output, Console(quiet=True), num_steps)


def killed_at(wanted: int) -> Callable[[int], None]:
    """A process that is gone when a pass begins."""

    def before(number: int) -> None:
        if number == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def in_a_process(function: Callable[[], Any]) -> int | None:
    """The exit code of a process of its own that runs a function."""
    return processes([function])[0]


def processes(functions: Sequence[Callable[[], Any]]) -> list[int | None]:
    """The exit codes of processes that run a function each, at the same time."""
    started = [multiprocessing.get_context("fork").Process(target=function) for function in functions]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    return [process.exitcode for process in started]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def log_without_times(folder: Path) -> list[str]:
    return [line.partition(",")[2] for line in (folder / "log.csv").read_text().splitlines()]


def same(one: Path, other: Path) -> bool:
    """Whether two finished trainings have the same weights, curves and log, to the bit."""
    a, b = weights(one), weights(other)
    curves = [json.loads((folder / "training.json").read_text())["curves"] for folder in (one, other)]
    return (
        a.keys() == b.keys()
        and all(torch.equal(a[name], b[name]) for name in a)
        and curves[0] == curves[1]
        and log_without_times(one) == log_without_times(other)
    )
