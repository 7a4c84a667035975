"""The training loop: passes of an objective, updates and checkpoints. An interrupted training has the same curve."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from specbench.core.errors import ConfigError
from specbench.decoding.decoder import stream_seed
from specbench.training.checkpoint import (
    Log,
    Loss,
    RateProgress,
    StepCurve,
    load_checkpoint,
    save_checkpoint,
    trained_parameters,
)
from specbench.training.cost import CostMeter
from specbench.training.output import OutputFolder
from specbench.training.spec import TrainSpec


@dataclass(frozen=True)
class LossPart:
    """One mini-batch of a pass. Its loss is computed on request, so that only one graph is in memory.

    The gradient of a pass is the sum of `weight` times the gradient of `loss` over its parts.
    """

    group: str
    """Language, or "all" if there is only one group."""
    weight: float
    """Constant factor of the loss; no gradient flows through it."""
    num_tokens: int
    """Number of tokens that the loss is averaged over."""
    loss: Callable[[nn.Module], Tensor]
    """The drafter's loss on this mini-batch: a float32 scalar with its graph."""


class Objective(Protocol):
    """What a drafter is trained on, in passes that are counted from 0; a step of the training has one or several.

    Every draw of a pass depends only on (seed, number, purpose), so that a training can be resumed. In the log,
    `columns` follow the columns timestamp, step and pass.
    """

    columns: tuple[str, ...]

    def parts(self, drafter: nn.Module, number: int) -> list[LossPart]:
        """Returns the mini-batches of a pass. It may first run the drafter without gradients: s-CDF needs the loss of
        every group."""
        ...

    def rows(self, drafter: nn.Module, number: int) -> list[dict[str, Any]]:
        """Returns the log rows of the last pass, one per group, with the keys of `columns`. It is called before the
        update."""
        ...

    def validation(self, drafter: nn.Module) -> float | None:
        """Returns the mean loss on the validation data, None if there is none."""
        ...


NO_BITSANDBYTES = "quantize = 'nf4': needs bitsandbytes: pip install 'specbench[quant]'"


def make_optimizer(parameters: Sequence[nn.Parameter], spec: TrainSpec) -> torch.optim.Optimizer:
    """Returns AdamW (arXiv:1711.05101), with 8-bit state (arXiv:2110.02861) for quantised models. The loop sets its
    learning rate at every update.

    Raises ConfigError if bitsandbytes is missing.
    """
    if spec.quantize == "none":
        return torch.optim.AdamW(parameters, lr=0.0, weight_decay=spec.weight_decay)
    made: torch.optim.Optimizer = bitsandbytes().optim.AdamW8bit(parameters, lr=0.0, weight_decay=spec.weight_decay)
    return made


def bitsandbytes() -> Any:
    """Returns the library of 4-bit weights and 8-bit optimizers. Raises ConfigError if it is missing or does not
    load."""
    try:
        import bitsandbytes
    except Exception as error:  # its import searches for the driver's libraries
        raise ConfigError(NO_BITSANDBYTES) from error
    return bitsandbytes


def rate_at(spec: TrainSpec, highest: float, step: int, num_steps: int) -> float:
    """Returns the learning rate of the update of `step` (from 1): a linear warm-up to `highest`, then constant, or half
    a cosine that would reach 0 one step after the last."""
    warmup = spec.warmup if spec.warmup >= 1 else spec.warmup * num_steps
    if step <= warmup:
        return highest * step / warmup
    if spec.schedule == "constant":
        return highest
    share = (step - warmup) / (num_steps + 1 - warmup)
    return highest * (1 + math.cos(math.pi * share)) / 2


class Loop:
    """Trains one drafter with one learning rate in its own folder.

    A step is `gradient_accumulation` passes of the objective and one update with the mean of their gradients. Steps are
    counted from 1, passes from 0 over the whole training. Several processes share the parts of a pass and sum their
    gradients.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, spec: TrainSpec, num_steps: int, rate: float, folder: Path,
        accelerator: Accelerator,
    ) -> None:  # fmt: skip
        self.model, self.objective, self.spec, self.num_steps, self.rate = model, objective, spec, num_steps, rate
        self.folder, self.accelerator = folder, accelerator
        self.parameters = list(trained_parameters(model).values())
        self.optimizer = make_optimizer(self.parameters, spec)
        self.log = Log(folder / "log.csv", objective.columns)

    def run(self, output: OutputFolder, bar: Any) -> RateProgress:
        """Runs all steps after the checkpoint, up to the step in which a loss or a gradient is not finite. Raises
        ConfigError if the disk is full."""
        done = load_checkpoint(self.folder, self.model, self.optimizer)
        with output.writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.accelerator.is_main_process:
                self.log.cut_back(done.log_bytes)
        with CostMeter(self.accelerator.device, done.cost) as meter, bar(done.num_done) as progress:
            try:
                for step in range(done.num_done + 1, self.num_steps + 1):
                    done.curve.append(self.step(step, output))
                    done.num_done = step
                    if self.is_due(step, self.spec.checkpoint_every):
                        self._checkpoint(done, meter, output)
                    progress.report(done.curve[-1])
            except FloatingPointError as error:
                done.lost, done.cost = str(error), meter.cost()
        return done

    def is_due(self, step: int, every: int) -> bool:
        """Returns whether an action with this period is due after a step; it is always due after the last one."""
        return step % every == 0 or step == self.num_steps

    def step(self, step: int, output: OutputFolder) -> StepCurve:
        """Computes the gradients of a step's passes, logs them, and updates the weights."""
        num_passes = self.spec.gradient_accumulation
        losses: list[Loss] = []
        for place in range(num_passes):
            number = (step - 1) * num_passes + place
            losses += self._pass(number, step)
            if self.is_due(step, self.spec.log_every):
                self._log(step, place + 1, number, output)
        return StepCurve.of(step, self._update(step), losses)

    def _pass(self, number: int, step: int) -> list[Loss]:
        """Adds the gradients of this process's parts of a pass. Returns the losses of all parts. Raises
        FloatingPointError, in every process, for a loss that is not finite."""
        torch.manual_seed(stream_seed(self.spec.seed, number, "dropout"))
        self.model.eval()
        with self.accelerator.autocast():
            parts = self.objective.parts(self.model, number)
        self.model.train()
        share = slice(self.accelerator.process_index, None, self.accelerator.num_processes)
        losses = [self._backward(part) for part in parts[share]]
        if self.accelerator.num_processes > 1:
            losses = gather_object(losses)
        for group, loss, _ in losses:
            check_finite(loss, f"the loss of '{group}'", step)
        return losses

    def _backward(self, part: LossPart) -> Loss:
        with self.accelerator.autocast(), torch.set_grad_enabled(part.weight != 0):
            loss = part.loss(self.model)
        if part.weight != 0:
            self.accelerator.backward(loss * (part.weight / self.spec.gradient_accumulation))
        return part.group, float(loss.detach()), part.num_tokens

    def _update(self, step: int) -> float:
        """Updates the weights. Returns the learning rate."""
        if self.accelerator.num_processes > 1:
            for parameter in self.parameters:
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.accelerator.reduce(own, reduction="sum")
        norm = nn.utils.clip_grad_norm_(self.parameters, self.spec.clip or math.inf)
        check_finite(float(norm), "the norm of the gradient", step)
        rate = rate_at(self.spec, self.rate, step, self.num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return rate

    def _log(self, step: int, place: int, number: int, output: OutputFolder) -> None:
        self.model.eval()
        with self.accelerator.autocast():
            rows = self.objective.rows(self.model, number)
        if self.accelerator.is_main_process:
            with output.writing():
                self.log.append(step, place, rows)

    def _checkpoint(self, done: RateProgress, meter: CostMeter, output: OutputFolder) -> None:
        self.model.eval()
        with self.accelerator.autocast():
            held_back = self.objective.validation(self.model)
        if held_back is not None:
            check_finite(held_back, "the validation loss", done.num_done)
            done.validation[done.num_done] = float(held_back)
        done.cost = meter.cost()
        if self.accelerator.is_main_process:
            with output.writing():
                done.log_bytes = self.log.sync()
                save_checkpoint(self.folder, self.model, self.optimizer, done)
        self.accelerator.wait_for_everyone()


def check_finite(value: float, what: str, step: int) -> None:
    """Raises FloatingPointError for a value that is not finite."""
    if not math.isfinite(value):
        raise FloatingPointError(f"step {step}: {what} is {value}")
