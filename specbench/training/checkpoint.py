"""The checkpoint of a training: all that the next step depends on, in one file that is replaced atomically; and its
log."""

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
        """Returns the step with the mean losses over the tokens of each group."""
        sums: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for group, loss, num_tokens in losses:
            sums[group] += loss * num_tokens
            counts[group] += num_tokens
        means = {group: sums[group] / max(1, counts[group]) for group in sums}
        return cls(step, learning_rate, means, sum(counts.values()))


@dataclass
class RateProgress:
    """The progress of one learning rate: finished steps, its curve, validation losses by number of steps, and the bytes
    of the log.

    lost: the step and the value that was not finite, if the training diverged.
    """

    num_done: int = 0
    log_bytes: int = 0
    curve: list[StepCurve] = field(default_factory=list)
    validation: dict[int, float] = field(default_factory=dict)
    cost: Cost = field(default_factory=dict)
    lost: str | None = None


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that are trained, by name; tied ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Sets the trained parameters."""
    for name, parameter in trained_parameters(model).items():
        parameter.copy_(weights[name])


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: RateProgress) -> None:
    """Replaces the checkpoint in a folder. Raises OSError; the old checkpoint is then unchanged."""
    content = io.BytesIO()
    curve = [vars(point) for point in progress.curve]
    weights = {name: parameter.detach() for name, parameter in trained_parameters(model).items()}
    torch.save(
        {"weights": weights, "optimizer": optimizer.state_dict(), "progress": {**vars(progress), "curve": curve}},
        content,
    )
    write_bytes(folder / CHECKPOINT, content.getbuffer())


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> RateProgress:
    """Loads the checkpoint in a folder into model and optimizer. Returns its progress, or that of a new training if
    there is none.

    Raises ConfigError for a file that is no complete checkpoint of this model.
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
    """Loads the trained parameters of the checkpoint in a folder into a model. Raises ConfigError as `load_checkpoint`
    does."""
    with naming_checkpoint(folder):
        set_weights(model, read_checkpoint(folder)["weights"])


def read_checkpoint(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True)
    return content


@contextmanager
def naming_checkpoint(folder: Path) -> Iterator[None]:
    """Raises ConfigError naming the file for whatever a file that was changed from outside raises."""
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"{folder / CHECKPOINT}: is no checkpoint of this training ({type(error).__name__}): delete {folder} to "
            "start again"
        ) from error


FIRST_COLUMNS = ("timestamp", "step", "pass")


class Log:
    """A CSV file with one line per log row of a pass. The columns timestamp (UTC), step (update of the weights) and
    pass (within its step) precede the objective's; step and pass are counted from 1."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.columns = (*FIRST_COLUMNS, *columns)

    def cut_back(self, num_bytes: int) -> None:
        """Removes what was written after the checkpoint; 0 starts a new log. Raises ConfigError for a log that is
        shorter than the checkpoint says."""
        if num_bytes == 0:
            self.path.write_text(self._lines([self.columns]), encoding="utf-8")
            return
        found = self.path.stat().st_size if self.path.exists() else 0
        if found < num_bytes:
            raise ConfigError(
                f"{self.path}: {found} bytes where the checkpoint knows {num_bytes}: restore the log, or delete "
                f"{self.path.parent} to start again"
            )
        os.truncate(self.path, num_bytes)

    def append(self, step: int, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes the rows of a pass; a missing column is empty."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        cells = [[now, step, number, *(row.get(name) for name in self.columns[len(FIRST_COLUMNS) :])] for row in rows]
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._lines(cells))

    def sync(self) -> int:
        """Writes the file to the disk. Returns its size in bytes."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def _lines(self, rows: Sequence[Sequence[Any]]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()
