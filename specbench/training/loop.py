"""The training loop with its optimizers, its checkpoints and its log. An interrupted and resumed training has the same
curve and the same log."""

import csv
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn

from specbench.core.errors import ConfigError
from specbench.core.files import replacing_file
from specbench.decoding.decoder import stream_seed
from specbench.models.loading import bitsandbytes
from specbench.models.meters import Cost, CostMeter
from specbench.training.output import CHECKPOINT, OutputFolder, RateCurve, StepCurve
from specbench.training.spec import TrainSpec

Loss = tuple[str, float, int]  # of a text: its group, the sum of its losses, its number of tokens
GroupLosses = dict[str, tuple[float, int]]  # of each group: the mean loss over its tokens, and their number
LogRow = dict[str, float | str | None]  # by column


@dataclass
class RateProgress:
    """The progress of one learning rate: finished steps, rows of the log, curve, and validation losses by number of
    steps. lost: the step and the value that was not finite, if the training diverged."""

    num_done: int = 0
    log: list[LogRow] = field(default_factory=list)
    curve: list[StepCurve] = field(default_factory=list)
    validation: dict[int, float] = field(default_factory=dict)
    cost: Cost = field(default_factory=dict)
    lost: str | None = None

    @property
    def last_validation(self) -> float | None:
        """Returns the last validation loss, None if the rate diverged."""
        return None if self.lost else self.validation.get(self.num_done)

    def record(self, rate: float) -> RateCurve:
        return {
            "learning_rate": rate,
            "validation_loss": self.last_validation,
            "lost": self.lost,
            "validation": {str(num_done): loss for num_done, loss in self.validation.items()},
            "steps": self.curve,
        }


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:  # tied ones occur once
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


Optimizers = Sequence[tuple[torch.optim.Optimizer, float]]  # each with its share of the learning rate
SAVE_SECONDS = 300.0  # between checkpoints at most, since a step of a large target takes long
ADAMW_SHARE = 0.15  # of the learning rate of Muon, for the other parameters


def make_optimizers(model: nn.Module, spec: TrainSpec) -> Optimizers:
    """Returns AdamW (arXiv:1711.05101), with 8-bit state (arXiv:2110.02861) for quantised models; or Muon for the
    matrices inside the layers of a draft head, and AdamW for its output layers, gains and biases. The loop sets their
    learning rates at every update.

    Raises ConfigError if bitsandbytes or torch's Muon is missing.
    """
    trained = list(trained_parameters(model).values())
    if spec.optimizer == "muon":
        if not hasattr(torch.optim, "Muon"):
            raise ConfigError("optimizer = 'muon': needs torch 2.9 or later: install it, or give optimizer=adamw")
        outputs = {id(value) for layer in model.output_layers() for value in layer.parameters()}  # type: ignore[operator]
        matrices = [value for value in trained if value.ndim == 2 and id(value) not in outputs]
        inside = set(map(id, matrices))
        others = [value for value in trained if id(value) not in inside]
        muon = torch.optim.Muon(matrices, lr=0.0, weight_decay=spec.weight_decay)
        return [(muon, 1.0), (torch.optim.AdamW(others, lr=0.0, weight_decay=0.0), ADAMW_SHARE)]
    adamw: Any = torch.optim.AdamW
    if spec.quantize != "none":
        adamw = bitsandbytes(f"quantize = {spec.quantize!r}").optim.AdamW8bit
    return [(adamw(trained, lr=0.0, weight_decay=spec.weight_decay), 1.0)]


@torch.no_grad()
def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in trained_parameters(model).items():
        parameter.copy_(weights[name])


def load_checkpoint(folder: Path, model: nn.Module, optimizers: Optimizers = ()) -> RateProgress:
    """Loads a folder's checkpoint into the model and the optimizers. Returns its progress.

    Returns a new progress if there is no checkpoint and optimizers are given, which a training then starts with. Raises
    ConfigError if the file is not a complete checkpoint of this model, and without optimizers if it is absent.
    """
    if optimizers and not (folder / CHECKPOINT).exists():
        return RateProgress()
    try:
        # Mapped, since weights and the optimizer's state may take more than half of the memory.
        content = torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True, mmap=True)
        set_weights(model, content["weights"])
        for (optimizer, _), state in zip(optimizers, content["optimizers"], strict=False):
            optimizer.load_state_dict(deepcopy(state))  # which the next checkpoint may replace
        return RateProgress(**content["progress"])
    except Exception as error:
        raise ConfigError(
            f"{folder / CHECKPOINT}: is not a checkpoint of this training ({type(error).__name__}): delete {folder} to "
            "start again"
        ) from error


def write_log(path: Path, columns: Sequence[str], rows: Sequence[LogRow]) -> None:
    """Writes a CSV file with the log rows of passes. Before the objective's columns there are timestamp (UTC), step and
    pass (within the step), both counted from 1."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ("timestamp", "step", "pass", *columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@dataclass(frozen=True)
class LossPart:
    """One mini-batch of a pass. Its losses are computed on request, so that only one graph is in memory.

    The gradient of a pass is the sum of `weight` times the gradient of the mean of `losses` over its parts. `groups`:
    the group (a language) of each text and the number of its tokens, in order. `weight`: a constant; no gradient flows
    through it. `losses`: returns the drafter's loss on every token, float32 [num_tokens] with its graph.
    """

    groups: Sequence[tuple[str, int]]
    weight: float
    losses: Callable[[nn.Module], Tensor]


class Objective(Protocol):
    """The loss of a training in passes, counted from 0. A step has one or more passes.

    Every draw of a pass depends only on (seed, number, purpose), so that a training can be resumed. `columns`: the
    log's columns after timestamp, step and pass. `parts`: returns the mini-batches of a pass; it may run the drafter
    without gradients first, since s-CDF needs every group's loss. `rows`: returns the log rows of the last pass, whose
    losses are given, one per group, with the keys of `columns`; called before the update. `validation`: returns the
    mean loss on the validation data, if any.
    """

    columns: tuple[str, ...]

    def parts(self, drafter: nn.Module, number: int) -> list[LossPart]: ...
    def rows(self, drafter: nn.Module, number: int, losses: GroupLosses) -> list[LogRow]: ...
    def validation(self, drafter: nn.Module) -> float | None: ...


def by_group(losses: Iterable[Loss]) -> GroupLosses:
    sums: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for group, total, num_tokens in losses:
        sums[group] += total
        counts[group] += num_tokens
    return {group: (sums[group] / max(1, number), number) for group, number in counts.items()}


def rate_at(spec: TrainSpec, highest: float, step: int, num_steps: int) -> float:
    """Returns the learning rate of `step` (from 1): a linear warm-up to `highest`, then constant or half a cosine that
    would reach 0 one step after the last."""
    warmup = spec.warmup if spec.warmup >= 1 else spec.warmup * num_steps
    if step <= warmup:
        return highest * step / warmup
    if spec.schedule == "constant":
        return highest
    share = (step - warmup) / (num_steps + 1 - warmup)
    return highest * (1 + math.cos(math.pi * share)) / 2


@dataclass
class Loop:
    """Trains one drafter with one learning rate in its own folder.

    A step is `gradient_accumulation` passes of the objective and one update with the mean of their gradients. Steps are
    counted from 1, and passes from 0 over the whole training. Several processes share the parts of a pass and sum their
    gradients.
    """

    model: nn.Module
    objective: Objective
    spec: TrainSpec
    num_steps: int
    rate: float
    folder: Path
    accelerator: Accelerator

    def __post_init__(self) -> None:
        self.parameters = list(trained_parameters(self.model).values())
        self.optimizers = make_optimizers(self.model, self.spec)

    def run(self, output: OutputFolder, bar: Any) -> RateProgress:
        """Runs all steps after the checkpoint until the end, or until a loss or a gradient is not finite. Raises
        ConfigError if the disk is full."""
        done = load_checkpoint(self.folder, self.model, self.optimizers)
        saved = time.monotonic()
        with CostMeter(self.accelerator.device, done.cost) as meter, bar(done.num_done) as progress:
            try:
                for step in range(done.num_done + 1, self.num_steps + 1):
                    done.curve.append(self.step(step, done.log))
                    done.num_done = step
                    is_due = self.is_due(step, self.spec.checkpoint_every)
                    if is_due or self._agree(time.monotonic() - saved >= SAVE_SECONDS):
                        self._checkpoint(done, meter, output, validates=is_due)
                        saved = time.monotonic()
                    progress.report(done.curve[-1])
            except FloatingPointError as error:
                done.lost = str(error)
                done.cost = meter.cost()
        return done

    def _agree(self, wish: bool) -> bool:
        """Returns whether the main process wishes it, in all processes."""
        if self.accelerator.num_processes == 1:
            return wish
        return bool(broadcast_object_list([wish])[0])

    def is_due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self.num_steps

    def step(self, step: int, log: list[LogRow]) -> StepCurve:
        """Computes the gradients of a step's passes, logs them, and updates the weights. Raises FloatingPointError."""
        num_passes = self.spec.gradient_accumulation
        of_step: list[Loss] = []
        for place in range(num_passes):
            number = (step - 1) * num_passes + place
            losses = self._pass(number, step)
            of_step += losses
            if self.is_due(step, self.spec.log_every):
                with self._evaluating():
                    rows = self.objective.rows(self.model, number, by_group(losses))
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                log += [{"timestamp": now, "step": step, "pass": place + 1, **row} for row in rows]
        rate = self._update(step)
        means = {group: mean for group, (mean, _) in by_group(of_step).items()}
        num_tokens = sum(number for _, _, number in of_step)
        return {"step": step, "learning_rate": rate, "loss": means, "num_tokens": num_tokens}

    def _pass(self, number: int, step: int) -> list[Loss]:
        """Adds the gradients of this process's parts of a pass. Returns the losses of all texts."""
        # The stream of dropout depends on the pass only, so that a resumed training repeats it.
        torch.manual_seed(stream_seed(self.spec.seed, number, "dropout"))
        with self._evaluating():
            parts = self.objective.parts(self.model, number)
        self.model.train()
        losses: list[Loss] = []
        for part in parts[self.accelerator.process_index :: self.accelerator.num_processes]:
            with self.accelerator.autocast(), torch.set_grad_enabled(part.weight != 0):
                of_tokens = part.losses(self.model)
            if part.weight != 0:
                self.accelerator.backward(of_tokens.mean() * (part.weight / self.spec.gradient_accumulation))
            texts = of_tokens.detach().split([num_tokens for _, num_tokens in part.groups])
            totals = torch.stack([text.sum() for text in texts]).tolist()
            losses += [(group, total, size) for (group, size), total in zip(part.groups, totals, strict=True)]
        if self.accelerator.num_processes > 1:
            losses = gather_object(losses)
        # All processes see all losses, so that they stop together.
        for group, value, _ in losses:
            check_finite(value, f"the loss of '{group}'", step)
        return losses

    def _evaluating(self) -> AbstractContextManager[None]:
        """Turns dropout off. Returns the context of mixed precision."""
        self.model.eval()
        precision: AbstractContextManager[None] = self.accelerator.autocast()
        return precision

    def _update(self, step: int) -> float:  # the learning rate
        if self.accelerator.num_processes > 1:
            for parameter in self.parameters:
                # A process without parts in this step has no gradients, but all must take part in the sum.
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.accelerator.reduce(own, reduction="sum")
        norm = nn.utils.clip_grad_norm_(self.parameters, self.spec.clip or math.inf)
        check_finite(float(norm), "the norm of the gradient", step)
        rate = rate_at(self.spec, self.rate, step, self.num_steps)
        for optimizer, share in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return rate

    def _checkpoint(self, done: RateProgress, meter: CostMeter, output: OutputFolder, validates: bool) -> None:
        """Saves the state, after a validation if it is due. Saving changes nothing in the training."""
        held_out = None
        if validates:
            with self._evaluating():
                held_out = self.objective.validation(self.model)
        if held_out is not None:
            check_finite(held_out, "the validation loss", done.num_done)
            done.validation[done.num_done] = float(held_out)
        done.cost = meter.cost()
        if self.accelerator.is_main_process:
            with output.writing(), replacing_file(self.folder / CHECKPOINT) as file:  # if it fails, the old one stays
                weights = {name: value.detach() for name, value in trained_parameters(self.model).items()}
                states = [optimizer.state_dict() for optimizer, _ in self.optimizers]
                torch.save({"weights": weights, "optimizers": states, "progress": asdict(done)}, file)
        self.accelerator.wait_for_everyone()


def check_finite(value: float, what: str, step: int) -> None:
    if not math.isfinite(value):
        raise FloatingPointError(f"step {step}: {what} is {value}")
