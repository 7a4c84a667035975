"""The training loop: steps of an objective, updates, checkpoints; the same curve whether or not it was interrupted."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from specbench.errors import ConfigError
from specbench.running.compose import stream_seed
from specbench.training.cost import Meter
from specbench.training.files import OutputFolder
from specbench.training.log import Log
from specbench.training.objective import Objective, Part
from specbench.training.optimizers import make_optimizer, rate_at
from specbench.training.spec import TrainSpec
from specbench.training.state import Progress, StepCurve, load, save, trained

Loss = tuple[str, float, int]  # group, mean loss, tokens


class Loop:
    """One drafter trained with one learning rate, in a folder of its own.

    An update is made every `gradient_accumulation` steps and after the last one; checkpoints lie behind updates only,
    so that none holds half a gradient. Several processes share the parts of a step and add up their gradients.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, spec: TrainSpec, num_steps: int, rate: float, folder: Path,
        accelerator: Accelerator,
    ) -> None:  # fmt: skip
        self.model, self.objective, self.spec, self.num_steps, self.rate = model, objective, spec, num_steps, rate
        self.folder, self.accelerator = folder, accelerator
        self.parameters = list(trained(model).values())
        self.optimizer = make_optimizer(self.parameters, spec)
        self.log = Log(folder / "log.csv", objective.columns)
        self._learning_rate = 0.0

    def run(self, output: OutputFolder, bar: Any) -> Progress:
        """All steps that the checkpoint lacks. Raises ConfigError where the loss is not finite or the disk is full."""
        done = load(self.folder, self.model, self.optimizer)
        meter = Meter(self.accelerator.device, done.cost)
        if done.curve:
            self._learning_rate = done.curve[-1].learning_rate
        with output.writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.accelerator.is_main_process:
                self.log.cut_back(done.log_bytes)
        with bar(done.num_done) as progress:
            for step in range(done.num_done, self.num_steps):
                done.curve.append(self.step(step))
                done.num_done = step + 1
                self._log(step, output)
                if self.is_checkpoint(step):
                    self._checkpoint(done, meter, output)
                progress.report(done.curve[-1])
        return done

    def step(self, step: int) -> StepCurve:
        """The gradients of a step's parts, and an update where one is due."""
        torch.manual_seed(stream_seed(self.spec.seed, step, "dropout"))
        self.model.eval()
        with self.accelerator.autocast():
            parts = self.objective.parts(self.model, step)
        self.model.train()
        share = slice(self.accelerator.process_index, None, self.accelerator.num_processes)
        losses = [self._backward(part, step) for part in parts[share]]
        if self.is_update(step):
            self._update(step)
        if self.accelerator.num_processes > 1:
            losses = gather_object(losses)
        return StepCurve(step, self._learning_rate, by_group(losses), sum(tokens for _, _, tokens in losses))

    def _backward(self, part: Part, step: int) -> Loss:
        with self.accelerator.autocast(), torch.set_grad_enabled(part.weight != 0):
            loss = part.loss(self.model)
        if part.weight != 0:
            self.accelerator.backward(loss * (part.weight / self.spec.gradient_accumulation))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise not_finite(f"the loss of '{part.group}' is {value}", step)
        return part.group, value, part.num_tokens

    def is_update(self, step: int) -> bool:
        return (step + 1) % self.spec.gradient_accumulation == 0 or step + 1 == self.num_steps

    def is_checkpoint(self, step: int) -> bool:
        """At the first update at or after every `checkpoint_every` steps."""
        every, steps = self.spec.checkpoint_every, self.spec.gradient_accumulation
        if not self.is_update(step):
            return False
        return step + 1 == self.num_steps or (step + 1) // every > (step + 1 - steps) // every

    def _update(self, step: int) -> None:
        if self.accelerator.num_processes > 1:
            for parameter in self.parameters:
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.accelerator.reduce(own, reduction="sum")
        norm = nn.utils.clip_grad_norm_(self.parameters, self.spec.clip or math.inf)
        if not bool(torch.isfinite(norm)):
            raise not_finite(f"the norm of the gradient is {float(norm)}", step)
        self._learning_rate = rate_at(self.spec, self.rate, step, self.num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _log(self, step: int, output: OutputFolder) -> None:
        if (step + 1) % self.spec.log_every and step + 1 != self.num_steps:
            return
        self.model.eval()
        with self.accelerator.autocast():
            rows = self.objective.rows(self.model, step)
        if self.accelerator.is_main_process:
            with output.writing():
                self.log.append(step, rows)

    def _checkpoint(self, done: Progress, meter: Meter, output: OutputFolder) -> None:
        self.model.eval()
        with self.accelerator.autocast():
            held_back = self.objective.validation(self.model)
        if held_back is not None:
            done.validation[done.num_done] = float(held_back)
        done.cost = meter.cost()
        if self.accelerator.is_main_process:
            with output.writing():
                done.log_bytes = self.log.sync()
                save(self.folder, self.model, self.optimizer, done)
        self.accelerator.wait_for_everyone()


def by_group(losses: Sequence[Loss]) -> dict[str, float]:
    """The mean loss of each group over its tokens."""
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for group, loss, num_tokens in losses:
        sums[group] += loss * num_tokens
        counts[group] += num_tokens
    return {group: sums[group] / max(1, counts[group]) for group in sums}


def not_finite(what: str, step: int) -> ConfigError:
    return ConfigError(
        f"step {step + 1}: {what}: lower --learning-rate or --set clip, or train with --dtype float32, into another "
        "--output; the last checkpoint is kept"
    )
