"""One training from loaded models to a finished checkpoint: all learning rates, the selection, the record."""

import shutil
import time
from collections.abc import Mapping
from functools import partial
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from accelerate import Accelerator
from rich.console import Console
from torch import nn
from transformers import AutoConfig

from specbench.core.console import say
from specbench.core.environment import require
from specbench.core.errors import ConfigError
from specbench.core.progress import ProgressBar
from specbench.decoding.bridges import VocabularyMismatch, check_equal
from specbench.decoding.decoder import stream_seed
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import choose_device, load_model
from specbench.results.conditions import environment
from specbench.training.heads import DraftHead
from specbench.training.loop import (
    Loop,
    Objective,
    RateProgress,
    StepCurve,
    load_checkpoint,
    set_weights,
    trained_parameters,
)
from specbench.training.output import (
    OutputFolder,
    TrainingRecord,
    all_settings,
    draw_curves,
    total_cost,
)
from specbench.training.spec import TrainSpec

MAX_SHOWN = 6  # languages in a progress line


def make_accelerator(spec: TrainSpec) -> Accelerator:
    """Returns the accelerator of this process, with the training's device and precision.

    Raises ConfigError for a missing device, or a device that cannot train in 4 bits.
    """
    device = choose_device(spec.device)
    if spec.quantize == "nf4" and device.type != "cuda":
        raise ConfigError(
            f"quantize = 'nf4': needs a GPU with CUDA, and this training is on {device.type}: train with quantize=none"
        )
    return Accelerator(cpu=device.type == "cpu", mixed_precision="bf16" if dtype_of(spec) == "bfloat16" else "no")


def dtype_of(spec: TrainSpec) -> str:
    """Returns the precision of the computation, float32 or bfloat16. `auto` depends on the device."""
    if spec.dtype != "auto":
        return spec.dtype
    return "float32" if choose_device(spec.device).type == "cpu" else "bfloat16"


def load_target(spec: TrainSpec, device: str) -> CausalLM:
    """Returns the frozen target. It has no weights if it neither continues nor scores texts, since plain texts are
    learnt or a server generates."""
    finetune = spec.finetune
    if finetune is not None and (finetune.stage == "pretrain" or finetune.server.base_url is not None):
        return load_role(spec, "target", device=device, weights=False)
    target = load_role(spec, "target", dtype=dtype_of(spec), device=device, quantize=spec.quantize)
    target.model.requires_grad_(False)
    return target


def load_drafter(spec: TrainSpec, device: str, target: CausalLM) -> CausalLM | DraftHead:
    """Returns the drafter before the training, in float32 unless it is quantised."""
    if spec.head is not None:
        return DraftHead.of(spec, target)
    return load_role(spec, "drafter", dtype="float32", device=device, quantize=spec.quantize)


def load_role(
    spec: TrainSpec, role: Literal["target", "drafter"], *, quantize: str = "none", **options: Any
) -> CausalLM:  # fmt: skip
    """Returns the target or the draft model. `quantize`: nf4 loads it in 4 bits with bfloat16 computation
    (arXiv:2305.14314). `options`: those of `load_model`.

    Raises ConfigError if the model cannot be loaded, or bitsandbytes is missing.
    """
    name, revision = getattr(spec, role), getattr(spec, f"{role}_revision")
    options |= {"revision": revision, "trust_remote_code": spec.trust_remote_code}
    if quantize == "none":
        return load_model(name, **options)
    try:
        return load_model(name, **{**options, "dtype": "bfloat16", "quantize": quantize})
    except ConfigError as error:
        raise ConfigError(f"quantize = 'nf4': {error}: try quantize=none") from error


def check_fit(target: CausalLM, drafter: CausalLM | DraftHead) -> None:
    """Raises ConfigError if the models have different vocabularies, since training compares them token by token."""
    if isinstance(drafter, DraftHead):
        return
    try:
        check_equal(target, drafter)
    except VocabularyMismatch as error:
        raise ConfigError(f"--drafter: {error}: choose a drafter of the target's family") from error


def prepare_network(drafter: CausalLM | DraftHead, spec: TrainSpec) -> nn.Module:
    """Returns the network to train. Only its trained parameters, which are all or the adapters', require gradients."""
    if isinstance(drafter, DraftHead):
        network: nn.Module = drafter.model.requires_grad_(False)
        for parameter in drafter.own_parameters.values():
            parameter.requires_grad_(True)
        return network
    model = drafter.model
    if spec.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if spec.lora is None:
        trained: nn.Module = model.requires_grad_(True)
        return trained
    require("peft", "lora")
    from peft import LoraConfig, TaskType, get_peft_model

    torch.manual_seed(stream_seed(spec.seed, "lora"))
    config = LoraConfig(
        r=spec.lora.rank, lora_alpha=spec.lora.alpha, lora_dropout=spec.lora.dropout,
        target_modules="all-linear", task_type=TaskType.CAUSAL_LM,
    )  # fmt: skip
    adapted: nn.Module = get_peft_model(model, config)
    return adapted


def stored_dtype(drafter: CausalLM | DraftHead, spec: TrainSpec) -> torch.dtype:
    """Returns the precision of the finished checkpoint: that of the original drafter, or of a head's target."""
    model, revision = drafter, spec.drafter_revision
    if isinstance(drafter, DraftHead):
        model, revision = drafter.target, spec.target_revision
    config = AutoConfig.from_pretrained(
        model.model.config._name_or_path, revision=revision, trust_remote_code=spec.trust_remote_code
    )
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32


STATE_BYTES = 12  # per trained parameter in a checkpoint: the value and two moments


def train_drafter(
    drafter: CausalLM | DraftHead, objective: Objective, spec: TrainSpec, folder: OutputFolder, console: Console,
    num_steps: int, about: Mapping[str, Any] = MappingProxyType({}), command: str | None = None,
) -> TrainingRecord:  # fmt: skip
    """Trains a drafter into an open output folder (`OutputFolder.held`), resuming its checkpoint if there is one.

    `about`: the entries of training.json on data, models and preparation. The drafter's network is changed in place.
    Raises ConfigError if the disk lacks space, if all learning rates diverge, or if a file cannot be written.
    """
    accelerator = make_accelerator(spec)
    model = prepare_network(drafter, spec)
    folder.check_room(needed_bytes(model, len(spec.learning_rate)))
    tried = train_all_rates(model, objective, spec, folder, console, num_steps, accelerator)
    if all(progress.lost for progress in tried):
        raise ConfigError(
            f"{'; '.join(str(progress.lost) for progress in tried)}: lower --learning-rate or --set clip, or train "
            f"with --dtype float32, into another --output; {folder.what_is_kept()}"
        )
    losses = [inf if progress.last_validation is None else progress.last_validation for progress in tried]
    chosen = losses.index(min(losses))
    record = TrainingRecord(
        settings=all_settings(spec, num_steps),
        data=about.get("data", {}),
        models={
            **about.get("models", {}),
            "num_trained_parameters": num_elements(trained_parameters(model)),
            "stored_dtype": str(stored_dtype(drafter, spec)).removeprefix("torch."),
        },
        chosen=chosen,
        curves=[progress.record(rate) for rate, progress in zip(spec.learning_rate, tried, strict=True)],
        cost=total_cost([progress.cost for progress in tried]),
        preparation=about.get("preparation", {}),
        environment=environment(str(drafter.device), drafter.dtype, drafter.attention),
        command=command,
    )
    if accelerator.is_main_process:
        load_checkpoint(rate_folder(folder, chosen), model)
        with folder.writing():
            write_finished(model, drafter, spec, folder, record)
    accelerator.wait_for_everyone()
    return record


class TrainingProgress(ProgressBar):
    """Shows the steps of one learning rate. `quiet` in all processes except the main one."""

    def __init__(self, console: Console, num_steps: int, num_done: int, quiet: bool) -> None:
        super().__init__(console, "first step", num_steps, completed=num_done, quiet=quiet)
        self.num_steps, self._num_done_before, self._started = num_steps, num_done, time.monotonic()
        self._losses: dict[str, float] = {}  # a step may have only some of the languages
        if 0 < num_done < num_steps and not quiet:
            say(console, f"resuming at step {num_done + 1} of {num_steps}")

    def report(self, point: StepCurve) -> None:
        """Shows a finished step."""
        self._losses |= point.loss
        text = f"loss {losses_text(self._losses)} · rate {point.learning_rate:.2g}"
        seconds_per_step = (time.monotonic() - self._started) / (point.step - self._num_done_before)
        seconds_left = seconds_per_step * (self.num_steps - point.step)
        plain = f"step {point.step}/{self.num_steps} {text} · {seconds_left:.0f} s left"
        self.update(text, point.step, plain, point.step == self.num_steps)


def losses_text(by_language: dict[str, float]) -> str:
    """Returns the highest losses with their languages, in descending order."""
    worst = sorted(by_language.items(), key=lambda pair: -pair[1])
    more = f" and {len(worst) - MAX_SHOWN} more" if len(worst) > MAX_SHOWN else ""
    return " ".join(f"{language} {loss:.3f}" for language, loss in worst[:MAX_SHOWN]) + more


def train_all_rates(
    model: nn.Module, objective: Objective, spec: TrainSpec, folder: OutputFolder, console: Console, num_steps: int,
    accelerator: Accelerator,
) -> list[RateProgress]:  # fmt: skip
    """Trains with every learning rate from the same initial weights. A rate that diverges does not stop the others."""
    initial = {name: parameter.detach().clone() for name, parameter in trained_parameters(model).items()}
    tried = []
    for number, rate in enumerate(spec.learning_rate):
        set_weights(model, initial)
        model.zero_grad(set_to_none=True)  # a rate that diverged leaves gradients behind
        loop = Loop(model, objective, spec, num_steps, rate, rate_folder(folder, number), accelerator)
        if len(spec.learning_rate) > 1 and accelerator.is_main_process:
            say(console, f"learning rate {rate:g} ({number + 1} of {len(spec.learning_rate)})")
        bar = partial(TrainingProgress, console, num_steps, quiet=not accelerator.is_main_process)
        tried.append(loop.run(folder, bar))
        if tried[-1].lost and number + 1 < len(spec.learning_rate) and accelerator.is_main_process:
            say(console, f"learning rate {rate:g} diverged ({tried[-1].lost}); trying the next one")
    return tried


def rate_folder(folder: OutputFolder, number: int) -> Path:
    """Returns the folder of a learning rate's checkpoint and log during the training."""
    return folder.work / f"rate-{number}"


def write_finished(
    model: nn.Module, drafter: CausalLM | DraftHead, spec: TrainSpec, folder: OutputFolder, record: TrainingRecord
) -> None:
    """Writes checkpoint, log, record and plot into the work folder, then moves them into place."""
    final = folder.work / "final"
    shutil.rmtree(final, ignore_errors=True)
    final.mkdir()
    if isinstance(drafter, DraftHead):
        drafter.save(final, stored_dtype(drafter, spec))
    else:
        save_draft_model(model, drafter, spec, final)
    shutil.copyfile(rate_folder(folder, record.chosen) / "log.csv", final / "log.csv")
    draw_curves(record, final / "curves.png")
    record.write(final)
    for path in final.iterdir():
        path.chmod(0o644)  # safetensors writes files that only the owner can read
    folder.publish(final)


def save_draft_model(model: nn.Module, drafter: CausalLM, spec: TrainSpec, folder: Path) -> None:
    """Writes a draft model, with merged adapters, and its tokenizer."""
    if spec.quantize == "nf4":  # adapters are merged into the weights before quantisation
        weights = {name: parameter.detach() for name, parameter in trained_parameters(model).items()}
        model = prepare_network(load_role(spec, "drafter", dtype="float32", device="cpu"), spec)
        set_weights(model, weights)
    plain: Any = model
    if spec.gradient_checkpointing:
        plain.gradient_checkpointing_disable()
    if spec.lora is not None:
        plain = plain.merge_and_unload()
    plain.to(stored_dtype(drafter, spec)).save_pretrained(folder)
    drafter.tokenizer.save_pretrained(folder)


def needed_bytes(model: nn.Module, num_rates: int) -> int:
    """Returns the needed disk space in bytes: one checkpoint per rate, another one while a checkpoint is replaced, and
    the finished model."""
    return (
        num_elements(trained_parameters(model)) * STATE_BYTES * (num_rates + 1)
        + num_elements(dict(model.named_parameters())) * 4
    )


def num_elements(parameters: dict[str, Any]) -> int:
    """Returns the number of elements of all parameters."""
    return sum(parameter.numel() for parameter in parameters.values())
