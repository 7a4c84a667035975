"""A checkpoint of a training: all that the next step depends on, in one file that is replaced as a whole."""

import csv
import io
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specbench.core.errors import ConfigError
from specbench.core.files import write_bytes
from specbench.training.cost import Cost

CHECKPOINT = "state.pt"
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
class RateProgress:
    """Where one learning rate has come: steps done, its curve, held-back losses by steps done, and the log's bytes.
    lost: why it cannot go on, where a loss or a gradient was not finite."""

    num_done: int = 0
    log_bytes: int = 0
    curve: list[StepCurve] = field(default_factory=list)
    validation: dict[int, float] = field(default_factory=dict)
    cost: Cost = field(default_factory=dict)
    lost: str | None = None


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name; tied ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set the trained parameters."""
    for name, parameter in trained_parameters(model).items():
        parameter.copy_(weights[name])


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: RateProgress) -> None:
    """Replace the checkpoint in a folder. Raises OSError, and then the old one is as it was."""
    content = io.BytesIO()
    curve = [vars(point) for point in progress.curve]
    weights = {name: parameter.detach() for name, parameter in trained_parameters(model).items()}
    torch.save(
        {"weights": weights, "optimizer": optimizer.state_dict(), "progress": {**vars(progress), "curve": curve}},
        content,
    )
    write_bytes(folder / CHECKPOINT, content.getbuffer())


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> RateProgress:
    """The checkpoint in a folder, put into model and optimizer; the beginning where there is none.

    Raises ConfigError for a file that is no whole checkpoint of this model.
    """
    if not (folder / CHECKPOINT).exists():
        return RateProgress()
    with naming_checkpoint(folder):
        content = read_checkpoint(folder)
        set_weights(model, content["weights"])
        optimizer.load_state_dict(content["optimizer"])
        progress = RateProgress(**content["progress"])
        progress.curve = [StepCurve(**point) for point in content["progress"]["curve"]]
    return progress


def load_weights(folder: Path, model: nn.Module) -> None:
    """The trained parameters of the checkpoint in a folder, put into a model. Raises ConfigError as `load` does."""
    with naming_checkpoint(folder):
        set_weights(model, read_checkpoint(folder)["weights"])


def read_checkpoint(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True)
    return content


@contextmanager
def naming_checkpoint(folder: Path) -> Iterator[None]:
    """Whatever a file that was changed from outside raises ends in one line."""
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"{folder / CHECKPOINT}: is no checkpoint of this training ({type(error).__name__}): delete {folder} to "
            "start again"
        ) from error


FIRST_COLUMNS = ("timestamp", "step", "pass")


class Log:
    """A line for each row of a pass. Before the objective's columns come timestamp (UTC), step (an update of the
    weights) and pass (within its step); both are counted from 1."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.columns = (*FIRST_COLUMNS, *columns)

    def cut_back(self, num_bytes: int) -> None:
        """Drop what was written after the checkpoint; 0 starts anew. Raises ConfigError for a log that lost lines."""
        if num_bytes == 0:
            self.path.write_text(self._lines([self.columns]), encoding="utf-8")
            return
        found = self.path.stat().st_size if self.path.exists() else 0
        if found < num_bytes:
            raise ConfigError(
                f"{self.path}: {found} bytes where the checkpoint knows {num_bytes}: restore the log, or delete "
                f"{self.path.parent} to begin anew"
            )
        os.truncate(self.path, num_bytes)

    def append(self, step: int, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of a pass; a column that a row lacks is empty."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        cells = [[now, step, number, *(row.get(name) for name in self.columns[len(FIRST_COLUMNS) :])] for row in rows]
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._lines(cells))

    def sync(self) -> int:
        """Bring what is written to the disk; the size in bytes."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def _lines(self, rows: Sequence[Sequence[Any]]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()
