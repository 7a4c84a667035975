"""One training from a loaded drafter to a finished checkpoint: every learning rate, the best of them, the record."""

import shutil
from collections.abc import Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from torch import nn

from specbench.console import say
from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.results.environment import environment
from specbench.training.curves import draw
from specbench.training.files import OutputFolder
from specbench.training.loop import Loop
from specbench.training.models import load_drafter, make_accelerator, merged, stored_dtype, trainable
from specbench.training.objective import Objective
from specbench.training.progress import TrainProgress
from specbench.training.record import TrainingRecord, curve_of, last_validation, now, settings_of, total
from specbench.training.spec import TrainSpec
from specbench.training.state import Progress, load_weights, put, trained

STATE_BYTES = 12  # of a trained parameter in a checkpoint: itself and two moments


def train(
    drafter: CausalLM, objective: Objective, spec: TrainSpec, folder: OutputFolder, console: Console, num_steps: int,
    about: dict[str, Any] | None = None, command: str | None = None,
) -> TrainingRecord:  # fmt: skip
    """Train a drafter into an output folder that is open (`OutputFolder.open`), from its checkpoint if it has one.

    `about`: what training.json says of data, models and preparation. The drafter's network is changed. Raises
    ConfigError where there is no room, where no learning rate keeps the loss finite, and where nothing can be written.
    """
    accelerator = make_accelerator(spec)
    model = trainable(drafter.model, spec)
    folder.check_room(room(model, len(spec.learning_rate)))
    tried = all_rates(model, objective, spec, folder, console, num_steps, accelerator)
    check_not_all_lost(tried, folder)
    chosen = best([last_validation(progress) for progress in tried])
    record = TrainingRecord(
        settings=settings_of(spec, num_steps),
        data=(about or {}).get("data", {}),
        models={
            **(about or {}).get("models", {}),
            "num_trained_parameters": count(trained(model)),
            "stored_dtype": str(stored_dtype(drafter.model, spec.drafter_revision)).removeprefix("torch."),
        },
        chosen=chosen,
        curves=[curve_of(rate, progress) for rate, progress in zip(spec.learning_rate, tried, strict=True)],
        cost=total([progress.cost for progress in tried]),
        preparation=(about or {}).get("preparation", {}),
        environment=environment(str(drafter.device), drafter.dtype, drafter.attention),
        command=command,
        finished=now(),
    )
    if accelerator.is_main_process:
        load_weights(work_of(folder, chosen), model)
        with folder.writing():
            finish(model, drafter, spec, folder, record)
    accelerator.wait_for_everyone()
    return record


def all_rates(
    model: nn.Module, objective: Objective, spec: TrainSpec, folder: OutputFolder, console: Console, num_steps: int,
    accelerator: Accelerator,
) -> list[Progress]:  # fmt: skip
    """Every learning rate from the same beginning; one that is lost does not keep the others from being tried."""
    initial = {name: parameter.detach().clone() for name, parameter in trained(model).items()}
    tried = []
    for number, rate in enumerate(spec.learning_rate):
        put(model, initial)
        model.zero_grad(set_to_none=True)  # a rate that was lost has left its own
        loop = Loop(model, objective, spec, num_steps, rate, work_of(folder, number), accelerator)
        if len(spec.learning_rate) > 1 and accelerator.is_main_process:
            say(console, f"learning rate {rate:g} ({number + 1} of {len(spec.learning_rate)})")
        bar = partial(TrainProgress, console, num_steps, quiet=not accelerator.is_main_process)
        tried.append(loop.run(folder, bar))
        if tried[-1].lost and number + 1 < len(spec.learning_rate) and accelerator.is_main_process:
            say(console, f"learning rate {rate:g} is lost, the next one is tried: {tried[-1].lost}")
    return tried


def work_of(folder: OutputFolder, number: int) -> Path:
    """Where the checkpoint and the log of a learning rate are, while the training goes on."""
    return folder.work / f"rate-{number}"


def best(losses: list[float | None]) -> int:
    """The index of the lowest held-back loss; a rate that is lost has none."""
    comparable = [inf if loss is None else loss for loss in losses]
    return comparable.index(min(comparable))


def check_not_all_lost(tried: Sequence[Progress], folder: OutputFolder) -> None:
    """Raise ConfigError where no learning rate has come to its end."""
    if all(progress.lost for progress in tried):
        raise ConfigError(
            f"{'; '.join(str(progress.lost) for progress in tried)}: lower --learning-rate or --set clip, or train "
            f"with --dtype float32, into another --output; {folder.kept()}"
        )


def finish(model: nn.Module, drafter: CausalLM, spec: TrainSpec, folder: OutputFolder, record: TrainingRecord) -> None:
    """Write the checkpoint, the log, the record and its picture beside the work, and move them into place."""
    final = folder.work / "final"
    shutil.rmtree(final, ignore_errors=True)
    final.mkdir()
    if spec.quantize == "nf4":  # adapters are merged into the weights as they were before their quantisation
        weights = {name: parameter.detach() for name, parameter in trained(model).items()}
        model = trainable(load_drafter(spec.model_copy(update={"quantize": "none"}), "cpu").model, spec)
        put(model, weights)
    plain: Any = merged(model, spec)
    plain.to(stored_dtype(plain, spec.drafter_revision)).save_pretrained(final)
    drafter.tokenizer.save_pretrained(final)
    shutil.copyfile(work_of(folder, record.chosen) / "log.csv", final / "log.csv")
    draw(record, final / "curves.png")
    record.write(final)
    for path in final.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read
    folder.publish(final)


def room(model: nn.Module, num_rates: int) -> int:
    """Bytes on the disk: a checkpoint of every rate, one more while it is replaced, and the finished model."""
    return count(trained(model)) * STATE_BYTES * (num_rates + 1) + count(dict(model.named_parameters())) * 4


def count(parameters: dict[str, Any]) -> int:
    return sum(parameter.numel() for parameter in parameters.values())
