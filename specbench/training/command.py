"""`specbench train scdf | distill | finetune`: settings → data, models, objective → a trained checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import cached_assets_path
from rich.console import Console

from specbench.execute import set_threads
from specbench.models.causal_lm import CausalLM
from specbench.resources import EMBEDDED
from specbench.running.progress import say
from specbench.training.cost import Meter
from specbench.training.data import TrainingData, load_data, total_steps
from specbench.training.files import OutputFolder
from specbench.training.models import check_fit, device_of, load_drafter, load_target, make_accelerator
from specbench.training.objectives import build_objective
from specbench.training.progress import saying_what_is_kept
from specbench.training.record import TrainingRecord, data_of, settings_of
from specbench.training.settings import settings
from specbench.training.spec import TrainSpec
from specbench.training.train import train

WITHOUT_EFFECT = ("output", "checkpoint_every", "device")  # a resumed training may have others


@dataclass(frozen=True)
class TrainRequest:
    """What a user asked for, as it was said; `options` by dotted key, None where an option was not given."""

    kind: str
    config: Path | None
    options: Mapping[str, Any]
    overrides: Sequence[str]
    threads: int | None
    command: str


def execute(request: TrainRequest, console: Console) -> tuple[TrainingRecord, Path] | None:
    """Train, or resume, and say what `specbench run` measures of the data; of several processes the main one gives the
    result. Raises ConfigError in one line."""
    spec = settings(request.kind, request.config, request.options, request.overrides)
    output = OutputFolder(Path(spec.output))
    output.check()
    set_threads(request.threads, spec.target.startswith(EMBEDDED))
    accelerator = make_accelerator(spec)
    data = load_data(spec)
    if accelerator.is_main_process:
        say_overlap(data, console)
    device = device_of(spec, accelerator)
    target, drafter = load_target(spec, device), load_drafter(spec, device)
    check_fit(target, drafter)
    with saying_what_is_kept(console, output.path):
        meter = Meter(target.device)
        objective = build_objective(spec, target, drafter.tokenizer, data, cache_folder(), console)
        num_steps = total_steps(spec, objective.num_items)
        about = {"data": data_of(data), "models": {"target": named(target), "drafter": named(drafter)},
                 "preparation": meter.cost()}  # fmt: skip
        if accelerator.is_main_process:
            say(console, f"training {drafter.name} for {target.name}: {num_steps} steps into {output.path}")
        with output.open(identity(spec, num_steps, about), is_main=accelerator.is_main_process):
            record = train(drafter, objective, spec, output, console, num_steps, about, request.command)
    return (record, output.path) if accelerator.is_main_process else None


def identity(spec: TrainSpec, num_steps: int, about: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for a training to be resumed."""
    kept = {key: value for key, value in settings_of(spec, num_steps).items() if key not in WITHOUT_EFFECT}
    return {"settings": kept, "data_digest": about["data"]["digest"], "models": about["models"]}


def named(model: CausalLM) -> dict[str, str | None]:
    """A model's name, and the commit or the digest of its files."""
    return {"name": model.name, "revision": model.revision}


def say_overlap(data: TrainingData, console: Console) -> None:
    """Rows that are measured are not trained on in silence."""
    if data.overlap:
        first, more = data.overlap[0], len(data.overlap) - 1
        say(
            console,
            f"warning: `specbench run` measures the rows that are trained on ({first}{f' and {more} more' * bool(more)}"
            "): give --data with other files and --set data.split=train, or --task world:NAME for the embedded models",
        )


def cache_folder() -> Path:
    """Where the target's continuations are kept, for all trainings of the user."""
    return cached_assets_path("specbench", namespace="training", subfolder="continuations")
