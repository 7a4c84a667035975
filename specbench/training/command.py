"""`specbench train scdf | distill | finetune`: settings → data, models, objective → a trained checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import cached_assets_path
from rich.console import Console

from specbench.console import say
from specbench.models.causal_lm import CausalLM
from specbench.resources import EMBEDDED
from specbench.threads import set_threads
from specbench.training.cost import Meter
from specbench.training.data import TrainingData, load_data, total_steps
from specbench.training.files import WITHOUT_EFFECT, OutputFolder
from specbench.training.finished import is_finished
from specbench.training.models import check_fit, device_of, dtype_of, load_drafter, load_target, make_accelerator
from specbench.training.objectives import build_objective
from specbench.training.progress import saying_what_is_kept
from specbench.training.record import FORMAT, TrainingRecord, data_of, settings_of
from specbench.training.settings import settings
from specbench.training.spec import TrainSpec
from specbench.training.train import train


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
    """Train, or resume, as a user asked; of several processes the main one gives the record and the folder. A training
    that is finished already is said to be so, and None.

    Raises ConfigError in one line."""
    spec = settings(request.kind, request.config, request.options, request.overrides)
    if is_finished(spec):
        say(console, f"{spec.output}: is finished already, with the same settings; another --output repeats it")
        return None
    OutputFolder(Path(spec.output)).check()
    set_threads(request.threads, spec.target.startswith(EMBEDDED))
    record = make(spec, console, cache_folder(), request.command)
    return (record, Path(spec.output)) if record is not None else None


def make(spec: TrainSpec, console: Console, cache: Path, command: str | None = None) -> TrainingRecord | None:
    """The training of checked settings, with what `specbench run` measures of its data said; the record, in the main
    process. cache: where the target's continuations are kept. Raises ConfigError."""
    output = OutputFolder(Path(spec.output))
    accelerator = make_accelerator(spec)
    if accelerator.is_main_process:
        output.check_writable()
    data = load_data(spec)
    if accelerator.is_main_process:
        say_overlap(data, console)
    device = device_of(spec, accelerator)
    target, drafter = load_target(spec, device), load_drafter(spec, device)
    check_fit(target, drafter)
    with saying_what_is_kept(console, output):
        with Meter(drafter.device) as meter:
            objective = build_objective(spec, target, drafter, data, cache, console)
            preparation = meter.cost()
        num_steps = total_steps(spec, objective.num_items)
        about = {"data": data_of(data), "models": {"target": named(target), "drafter": named(drafter)},
                 "preparation": preparation}  # fmt: skip
        same = identity(spec, num_steps, about, accelerator.num_processes)
        with output.open(same, is_main=accelerator.is_main_process):
            if accelerator.is_main_process:
                steps = f"{num_steps} steps of {spec.gradient_accumulation} passes"
                say(console, f"training {drafter.name} for {target.name}: {steps} into {output.path}")
            record = train(drafter, objective, spec, output, console, num_steps, about, command)
    return record if accelerator.is_main_process else None


def identity(spec: TrainSpec, num_steps: int, about: Mapping[str, Any], num_processes: int) -> dict[str, Any]:
    """What must be the same for a training to be resumed: of the dtype auto what it comes to on this device."""
    kept = {key: value for key, value in settings_of(spec, num_steps).items() if key not in WITHOUT_EFFECT}
    return {
        "format": FORMAT, "settings": {**kept, "dtype": dtype_of(spec)}, "num_processes": num_processes,
        "data_digest": about["data"]["digest"], "models": about["models"],
    }  # fmt: skip


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
