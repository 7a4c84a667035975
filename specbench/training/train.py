"""One training, from settings to a finished checkpoint: data, models, objective, all learning rates, the record."""

import shlex
import shutil
import time
from contextlib import nullcontext, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from huggingface_hub import cached_assets_path
from rich.console import Console
from torch import nn
from transformers import AutoConfig

from specbench.core import bounded
from specbench.core.console import counted, say
from specbench.core.environment import EMBEDDED, require, set_threads
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD, changed_settings
from specbench.core.progress import ProgressBar
from specbench.decoding.bridges import VocabularyMismatch, check_equal
from specbench.decoding.decoder import stream_seed
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import checkpoint_identity
from specbench.models.loading import choose_device, load_model, model_source
from specbench.models.machine import environment
from specbench.models.meters import CostMeter
from specbench.specs.catalogue import load_method
from specbench.specs.components import build
from specbench.training.data import WORLD, is_measured, load_data, total_steps, warn_of_overlap
from specbench.training.heads import DraftHead
from specbench.training.layers import with_layers
from specbench.training.loop import Loop, Objective, load_checkpoint, set_weights, trained_parameters, write_log
from specbench.training.objectives import build_objective
from specbench.training.output import (
    FORMAT,
    WITHOUT_EFFECT,
    OutputFolder,
    Provenance,
    StepCurve,
    TrainingRecord,
    all_settings,
    data_record,
    total_cost,
)
from specbench.training.spec import HEADS, TrainSpec


def run_training(spec: TrainSpec, threads: int | None, console: Console, command: str) -> TrainingRecord | None:
    """Starts or resumes a training. Returns its record, or None if it was already finished or this is not the main
    process. Raises ConfigError."""
    if is_finished(spec):
        say(console, f"{spec.output}: is already finished with the same settings; use another --output to train again")
        return None
    set_threads(threads, spec.target.startswith(EMBEDDED))
    return train_with_settings(spec, console, cache_folder(), command)


def cache_folder() -> Path:
    return cached_assets_path("specbench", namespace="training", subfolder="continuations")


def is_finished(spec: TrainSpec) -> bool:
    """Returns whether the output folder has the result of these settings, data and models. Returns False if it has no
    training of this kind. Raises ConfigError with the differences if it has another training of this kind."""
    try:
        record = bounded.read_json(Path(spec.output) / TRAINING_RECORD, "train it again", strict=False)
        settings = record["settings"]
        kind = record["settings"]["kind"]
        digest = record["data"]["digest"]
        revisions = {role: record["models"][role]["revision"] for role in ("target", "drafter")}
    except (ConfigError, LookupError, TypeError):
        return False
    if kind != spec.kind:
        return False
    with suppress(ConfigError):  # keys that the record does not know yet have their defaults
        settings = build(TrainSpec, settings).model_dump(mode="json")
    # A number of steps that is not given depends on the data, which are compared.
    without = (*WITHOUT_EFFECT, *(("num_steps",) if spec.num_steps is None else ()))
    requested = {key: value for key, value in spec.model_dump(mode="json").items() if key not in without}
    sources = {"target": (spec.target, spec.target_revision), "drafter": (spec.drafter, spec.drafter_revision)}
    now = {role: name and checkpoint_identity(model_source(name), given) for role, (name, given) in sources.items()}
    changed = changed_settings(
        {**{key: settings.get(key) for key in requested}, "data_digest": digest, "revisions": revisions},
        {**requested, "data_digest": load_data(spec).digest, "revisions": now},
    )
    if changed:
        raise ConfigError(
            f"--output {spec.output}: has a finished training with other settings ({'; '.join(changed)}): choose "
            "another --output, or delete it"
        )
    return True


def measurement_command(spec: TrainSpec) -> str:
    names = [name.removeprefix(WORLD) for name in spec.data.tasks]
    measured = [name for name, given in zip(names, spec.data.tasks, strict=True) if name == given or is_measured(name)]
    words = ["--task", ",".join(dict.fromkeys(measured)) or "TASK", "--method"]
    if spec.kind in HEADS:
        words += [spec.kind, "--set", f"drafter.path={spec.output}"]
        longest = None
        if spec.peagle is not None:
            longest = spec.peagle.num_draft_tokens
        elif spec.block is not None:
            longest = spec.block.block_size - (spec.dspark is None)
        if longest is not None and longest < load_method(spec.kind).num_draft_tokens:
            words += ["--set", f"num_draft_tokens={longest}"]
    else:
        words += ["sd", "--drafter", spec.output]
    if spec.target != TrainSpec.model_fields["target"].default:
        words += ["--target", spec.target]
    if spec.target_revision is not None:
        words += ["--target-revision", spec.target_revision]
    if spec.trust_remote_code:
        words += ["--trust-remote-code"]
    if spec.dtype != "auto":
        words += ["--dtype", spec.dtype]
    if spec.data.subsets is not None:
        words += ["--subset", ",".join(spec.data.subsets)]
    return shlex.join(["specbench", "run", *words])


def train_with_settings(
    spec: TrainSpec, console: Console, cache: Path, command: str | None = None
) -> TrainingRecord | None:
    """Trains with validated settings. Returns the record in the main process, else None.

    cache: the folder of the target's continuations. Raises ConfigError.
    """
    # 1. The output folder is tried first, so that no hours of generation are lost to a missing permission.
    output = OutputFolder(Path(spec.output))
    accelerator = make_accelerator(spec)
    if accelerator.is_main_process:
        output.check()

    # 2. Data and models.
    data = load_data(spec)
    if accelerator.is_main_process:
        warn_of_overlap(data, console)
    device = str(accelerator.device if accelerator.num_processes > 1 else choose_device(spec.device))
    finetune = spec.finetune
    if finetune is not None and (finetune.stage == "pretrain" or finetune.server.base_url is not None):
        # It neither continues nor scores texts: plain texts are learnt, or a server generates.
        target = load_role(spec, "target", device=device, weights=False)
    else:
        target = load_role(spec, "target", dtype=dtype_of(spec), device=device, quantize=spec.quantize)
        target.model.requires_grad_(False)
    drafter: CausalLM | DraftHead
    if spec.head is not None:
        drafter = DraftHead.of(spec, target)
    else:
        drafter = load_role(spec, "drafter", dtype="float32", device=device, quantize=spec.quantize)
        try:
            check_equal(target, drafter)  # training compares them token by token
        except VocabularyMismatch as error:
            raise ConfigError(f"--drafter: {error}: choose a drafter of the target's family") from error

    with output.reporting_what_is_saved(console):
        # 3. The objective. The target answers the prompts now, unless s-CDF draws them in every pass.
        with CostMeter(drafter.device) as meter:
            objective = build_objective(spec, target, drafter, data, cache, console)
            preparation = meter.cost()
        num_steps = total_steps(spec, objective.num_items)
        about = Provenance(
            data=data_record(data),
            models={
                "target": {"name": target.name, "revision": target.revision},
                "drafter": {"name": drafter.name, "revision": drafter.revision},
            },
            preparation=preparation,
            command=command,
        )

        # 4. The training. Only the main process locks the folder and writes.
        identity = training_identity(spec, num_steps, about, accelerator.num_processes)
        with output.held(identity) if accelerator.is_main_process else nullcontext():
            if accelerator.is_main_process:
                steps = f"{counted(num_steps, 'step')} of {spec.gradient_accumulation} passes"
                say(console, f"training {drafter.name} for {target.name}: {steps} into {output.path}")
            record = train_drafter(drafter, objective, spec, output, console, num_steps, about)
    return record if accelerator.is_main_process else None


def training_identity(spec: TrainSpec, num_steps: int, about: Provenance, num_processes: int) -> dict[str, object]:
    """Returns what must be equal to resume a training, with dtype auto resolved for this device."""
    settings = {key: value for key, value in all_settings(spec, num_steps).items() if key not in WITHOUT_EFFECT}
    return {
        "format": FORMAT, "settings": {**settings, "dtype": dtype_of(spec)}, "num_processes": num_processes,
        "data_digest": about.data["digest"], "models": about.models,
    }  # fmt: skip


def make_accelerator(spec: TrainSpec) -> Accelerator:
    """Returns the accelerator of this process, with the training's device and precision.

    Raises ConfigError for a missing device, or a device that cannot train in 4 bits.
    """
    device = choose_device(spec.device)
    if spec.quantize == "nf4" and device.type != "cuda":
        raise ConfigError(
            f"quantize = 'nf4': needs a GPU with CUDA, and this training is on {device.type}: train with quantize=none"
        )
    AcceleratorState._reset_state()  # one training after another in this process may have another precision
    return Accelerator(cpu=device.type == "cpu", mixed_precision="bf16" if dtype_of(spec) == "bfloat16" else "no")


def dtype_of(spec: TrainSpec) -> str:
    """Returns the precision of the computation, float32 or bfloat16. `auto` depends on the device."""
    if spec.dtype != "auto":
        return spec.dtype
    return "float32" if choose_device(spec.device).type == "cpu" else "bfloat16"


def load_role(spec: TrainSpec, role: Literal["target", "drafter"], **options: Any) -> CausalLM:
    """Returns the target or the draft model. `options`: those of `load_model`. In 4 bits (arXiv:2305.14314) it computes
    in bfloat16. Raises ConfigError."""
    if options.get("quantize", "none") != "none":
        options["dtype"] = "bfloat16"
    name, revision = getattr(spec, role), getattr(spec, f"{role}_revision")
    loaded = load_model(name, revision=revision, trust_remote_code=spec.trust_remote_code, **options)
    if role == "drafter" and spec.init_layers is not None:
        return with_layers(loaded, spec.init_layers)
    return loaded


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


def train_drafter(
    drafter: CausalLM | DraftHead, objective: Objective, spec: TrainSpec, folder: OutputFolder, console: Console,
    num_steps: int, about: Provenance | None = None,
) -> TrainingRecord:  # fmt: skip
    """Trains a drafter into an open output folder (`OutputFolder.held`), resuming its checkpoint if there is one.

    The drafter's network is changed in place. Raises ConfigError if all learning rates diverge, or if a file
    cannot be written.
    """
    about = about or Provenance()
    accelerator = make_accelerator(spec)
    rates = spec.learning_rate
    model = prepare_network(drafter, spec)

    # 1. Every learning rate starts from the same weights. A rate that diverges does not stop the others.
    trained = trained_parameters(model)
    initial = {name: parameter.detach().clone() for name, parameter in trained.items()} if len(rates) > 1 else {}
    work = [folder.work / f"rate-{number}" for number in range(len(rates))]
    tried = []
    for number, rate in enumerate(rates):
        if number:
            set_weights(model, initial)
            model.zero_grad(set_to_none=True)  # a rate that diverged leaves gradients behind
        loop = Loop(model, objective, spec, num_steps, rate, work[number], accelerator)
        speaks = len(rates) > 1 and accelerator.is_main_process
        if speaks:
            say(console, f"learning rate {rate:g} ({number + 1} of {len(rates)})")
        bar = partial(TrainingProgress, console, num_steps, quiet=not accelerator.is_main_process)
        tried.append(loop.run(folder, bar))
        if speaks and tried[-1].lost and number + 1 < len(rates):
            say(console, f"learning rate {rate:g} diverged ({tried[-1].lost}); trying the next one")
    if all(progress.lost for progress in tried):
        raise ConfigError(
            f"{'; '.join(str(progress.lost) for progress in tried)}: lower --learning-rate or --set clip, or train "
            f"with --dtype float32, into another --output; {folder.what_is_saved()}"
        )

    # 2. The validation loss selects a rate. Without one there is a single rate.
    losses = [inf if progress.last_validation is None else progress.last_validation for progress in tried]
    chosen = losses.index(min(losses))
    dtype = stored_dtype(drafter, spec)
    record = TrainingRecord(
        settings=all_settings(spec, num_steps),
        data=about.data,
        models={
            **about.models,
            "num_trained_parameters": sum(map(torch.numel, trained.values())),
            "stored_dtype": str(dtype).removeprefix("torch."),
        },
        chosen=chosen,
        curves=[progress.record(rate) for rate, progress in zip(rates, tried, strict=True)],
        cost=total_cost([progress.cost for progress in tried]),
        preparation=about.preparation,
        environment=environment(str(drafter.device), drafter.dtype, drafter.attention),
        command=about.command,
    )

    # 3. All files are written into the work folder, then moved into place.
    if accelerator.is_main_process:
        load_checkpoint(work[chosen], model)
        with folder.writing():
            final = folder.work / "final"
            shutil.rmtree(final, ignore_errors=True)
            final.mkdir()
            if isinstance(drafter, DraftHead):
                drafter.save(final, dtype)
            else:
                if spec.quantize == "nf4":  # adapters are merged into the weights before quantization
                    weights = {name: parameter.detach() for name, parameter in trained_parameters(model).items()}
                    model = prepare_network(load_role(spec, "drafter", dtype="float32", device="cpu"), spec)
                    set_weights(model, weights)
                plain: Any = model
                if spec.gradient_checkpointing:
                    plain.gradient_checkpointing_disable()
                if spec.lora is not None:
                    plain = plain.merge_and_unload()
                plain.to(dtype).save_pretrained(final)
                drafter.tokenizer.save_pretrained(final)
            write_log(final / "log.csv", objective.columns, tried[chosen].log)
            record.write(final)
            for path in final.iterdir():
                path.chmod(0o644)  # safetensors writes files that only the owner can read
            folder.publish(final)
    accelerator.wait_for_everyone()
    return record


MAX_SHOWN = 6  # languages in a progress line


class TrainingProgress(ProgressBar):
    """Shows the steps of one learning rate. `quiet` in all processes except the main one."""

    def __init__(self, console: Console, num_steps: int, num_done: int, quiet: bool) -> None:
        super().__init__(console, "first step", num_steps, completed=num_done, quiet=quiet)
        self.num_steps, self._num_done_before, self._started = num_steps, num_done, time.monotonic()
        self._losses: dict[str, float] = {}  # a step may have only some of the languages
        if 0 < num_done < num_steps and not quiet:
            say(console, f"resuming at step {num_done + 1} of {num_steps}")

    def report(self, point: StepCurve) -> None:
        step = point["step"]
        self._losses |= point["loss"]
        text = f"loss {losses_text(self._losses)} · rate {point['learning_rate']:.2g}"
        seconds_per_step = (time.monotonic() - self._started) / (step - self._num_done_before)
        seconds_left = seconds_per_step * (self.num_steps - step)
        plain = f"step {step}/{self.num_steps} {text} · {seconds_left:.0f} s left"
        self.update(text, step, plain, step == self.num_steps)


def losses_text(by_language: dict[str, float]) -> str:
    """Returns the highest losses with their languages, in descending order."""
    worst = sorted(by_language.items(), key=lambda pair: -pair[1])
    more = f" and {len(worst) - MAX_SHOWN} more" if len(worst) > MAX_SHOWN else ""
    return " ".join(f"{language} {loss:.3f}" for language, loss in worst[:MAX_SHOWN]) + more
