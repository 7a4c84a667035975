"""A checkpoint of a training: all that the next step depends on, in one file that is replaced as a whole."""

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specbench.errors import ConfigError
from specbench.files import write_bytes
from specbench.training.cost import Cost

STATE = "state.pt"
Loss = tuple[str, float, int]  # of a mini-batch: its group, mean loss, tokens


@dataclass
class StepCurve:
    """One step, counted from 1: the learning rate of its update, and the mean loss per language over all its tokens."""

    step: int
    learning_rate: float
    loss: dict[str, float]
    num_tokens: int

    @classmethod
    def of(cls, step: int, learning_rate: float, losses: Sequence[Loss]) -> "StepCurve":
        """The means over the tokens of each group."""
        sums: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for group, loss, num_tokens in losses:
            sums[group] += loss * num_tokens
            counts[group] += num_tokens
        means = {group: sums[group] / max(1, counts[group]) for group in sums}
        return cls(step, learning_rate, means, sum(counts.values()))


@dataclass
class Progress:
    """Where one learning rate has come: steps done, its curve, held-back losses by steps done, and the log's bytes.
    lost: why it cannot go on, where a loss or a gradient was not finite."""

    num_done: int = 0
    log_bytes: int = 0
    curve: list[StepCurve] = field(default_factory=list)
    validation: dict[int, float] = field(default_factory=dict)
    cost: Cost = field(default_factory=dict)
    lost: str | None = None


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name; tied ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set the trained parameters."""
    for name, parameter in trained(model).items():
        parameter.copy_(weights[name])


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Replace the checkpoint in a folder. Raises OSError, and then the old one is as it was."""
    content = io.BytesIO()
    curve = [vars(point) for point in progress.curve]
    weights = {name: parameter.detach() for name, parameter in trained(model).items()}
    torch.save(
        {"weights": weights, "optimizer": optimizer.state_dict(), "progress": {**vars(progress), "curve": curve}},
        content,
    )
    write_bytes(folder / STATE, content.getbuffer())


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """The checkpoint in a folder, put into model and optimizer; the beginning where there is none.

    Raises ConfigError for a file that is no whole checkpoint of this model.
    """
    if not (folder / STATE).exists():
        return Progress()
    with naming(folder):
        content = read(folder)
        put(model, content["weights"])
        optimizer.load_state_dict(content["optimizer"])
        progress = Progress(**content["progress"])
        progress.curve = [StepCurve(**point) for point in content["progress"]["curve"]]
    return progress


def load_weights(folder: Path, model: nn.Module) -> None:
    """The trained parameters of the checkpoint in a folder, put into a model. Raises ConfigError as `load` does."""
    with naming(folder):
        put(model, read(folder)["weights"])


def read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return content


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Whatever a file that was changed from outside raises ends in one line."""
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"{folder / STATE}: is no checkpoint of this training ({type(error).__name__}): delete {folder} to begin "
            "it anew"
        ) from error
