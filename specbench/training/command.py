"""The command `specbench train`: settings → data, models and objective → a trained checkpoint."""

import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from huggingface_hub import cached_assets_path
from rich.console import Console

from specbench.core import bounded
from specbench.core.console import counted, say
from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD, changed_settings
from specbench.models.checkpoints import checkpoint_identity
from specbench.models.loading import choose_device, model_source
from specbench.models.meters import CostMeter
from specbench.training.data import WORLD, TrainingData, is_measured, load_data, total_steps
from specbench.training.objectives import build_objective
from specbench.training.output import FORMAT, WITHOUT_EFFECT, OutputFolder, TrainingRecord, all_settings, data_record
from specbench.training.spec import HEADS, TrainSpec
from specbench.training.train import (
    check_fit,
    dtype_of,
    load_drafter,
    load_target,
    make_accelerator,
    train_drafter,
)


def is_finished(spec: TrainSpec) -> bool:
    """Returns whether the output folder has the result of these settings, data and models. Returns False if it has no
    training of this kind. Raises ConfigError with the differences if it has another training of this kind."""
    try:
        record = bounded.read_json(Path(spec.output) / TRAINING_RECORD, "train it again", strict=False)
        made, kind, digest = record["settings"], record["settings"]["kind"], record["data"]["digest"]
        revisions = {name: record["models"][name]["revision"] for name in ("target", "drafter")}
    except (ConfigError, LookupError, TypeError):
        return False
    if kind != spec.kind:
        return False
    requested = {key: value for key, value in spec.model_dump(mode="json").items() if key not in WITHOUT_EFFECT}
    if spec.num_steps is None:  # the data determine it
        del requested["num_steps"]
    check_same(spec, {key: made.get(key) for key in requested}, requested)
    sources = {"target": (spec.target, spec.target_revision), "drafter": (spec.drafter, spec.drafter_revision)}
    now = {role: name and checkpoint_identity(model_source(name), given) for role, (name, given) in sources.items()}
    check_same(
        spec, {"data_digest": digest, "revisions": revisions},
        {"data_digest": load_data(spec).digest, "revisions": now},
    )  # fmt: skip
    return True


def check_same(spec: TrainSpec, made: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Raises ConfigError with the differences between a finished training and the requested one."""
    if changed := "; ".join(changed_settings(made, requested)):
        raise ConfigError(
            f"--output {spec.output}: has a finished training with other settings ({changed}): choose another "
            "--output, or delete it"
        )


def measurement_command(settings: Mapping[str, Any], folder: Path) -> str:
    """Returns the command that measures a trained drafter on the tasks of its training, or on TASK if it has none."""
    data = settings["data"]
    names = [name.removeprefix(WORLD) for name in data["tasks"]]
    known = [name for name, given in zip(names, data["tasks"], strict=True) if name == given or is_measured(name)]
    words = ["--task", ",".join(dict.fromkeys(known)) or "TASK", "--method"]
    is_head = settings["kind"] in HEADS
    words += [settings["kind"], "--set", f"drafter.path={folder}"] if is_head else ["sd", "--drafter", str(folder)]
    if settings["target"] != TrainSpec.model_fields["target"].default:
        words += ["--target", settings["target"]]
    if settings["target_revision"] is not None:
        words += ["--target-revision", settings["target_revision"]]
    if settings.get("trust_remote_code"):
        words += ["--trust-remote-code"]
    if data["subsets"] is not None:
        words += ["--subset", ",".join(data["subsets"])]
    return shlex.join(["specbench", "run", *words])


def run_training(spec: TrainSpec, threads: int | None, console: Console, command: str) -> TrainingRecord | None:
    """Starts or resumes a training. Returns its record, or None if it was already finished or this is not the main
    process. Raises ConfigError."""
    if is_finished(spec):
        say(console, f"{spec.output}: is already finished with the same settings; to repeat it, give another --output")
        return None
    OutputFolder(Path(spec.output)).check()
    set_threads(threads, spec.target.startswith(EMBEDDED))
    return train_with_settings(spec, console, cache_folder(), command)


def train_with_settings(
    spec: TrainSpec, console: Console, cache: Path, command: str | None = None
) -> TrainingRecord | None:
    """Trains with validated settings. Warns if `specbench run` measures the data. Returns the record in the main
    process, else None.

    cache: the folder of the target's continuations. Raises ConfigError.
    """
    output = OutputFolder(Path(spec.output))
    accelerator = make_accelerator(spec)
    if accelerator.is_main_process:
        output.check_writable()
    data = load_data(spec)
    if accelerator.is_main_process:
        warn_of_overlap(data, console)
    device = str(accelerator.device if accelerator.num_processes > 1 else choose_device(spec.device))
    target = load_target(spec, device)
    drafter = load_drafter(spec, device, target)
    check_fit(target, drafter)
    with output.reporting_what_is_kept(console):
        with CostMeter(drafter.device) as meter:
            objective = build_objective(spec, target, drafter, data, cache, console)
            preparation = meter.cost()
        num_steps = total_steps(spec, objective.num_items)
        models = {
            role: {"name": model.name, "revision": model.revision}
            for role, model in (("target", target), ("drafter", drafter))
        }
        about = {"data": data_record(data), "models": models, "preparation": preparation}
        same = training_identity(spec, num_steps, about, accelerator.num_processes)
        with output.held(same) if accelerator.is_main_process else nullcontext():
            if accelerator.is_main_process:
                steps = f"{counted(num_steps, 'step')} of {spec.gradient_accumulation} passes"
                say(console, f"training {drafter.name} for {target.name}: {steps} into {output.path}")
            record = train_drafter(drafter, objective, spec, output, console, num_steps, about, command)
    return record if accelerator.is_main_process else None


def training_identity(spec: TrainSpec, num_steps: int, about: Mapping[str, Any], num_processes: int) -> dict[str, Any]:
    """Returns what must be equal to resume a training, with dtype auto resolved for this device."""
    kept = {key: value for key, value in all_settings(spec, num_steps).items() if key not in WITHOUT_EFFECT}
    return {
        "format": FORMAT, "settings": {**kept, "dtype": dtype_of(spec)}, "num_processes": num_processes,
        "data_digest": about["data"]["digest"], "models": about["models"],
    }  # fmt: skip


def warn_of_overlap(data: TrainingData, console: Console) -> None:
    """Warns if the training data contains rows that `specbench run` measures."""
    if data.overlap:
        first, more = data.overlap[0], len(data.overlap) - 1
        say(
            console,
            f"warning: `specbench run` measures the training rows ({first}{f' and {more} more' * bool(more)}): give "
            "--data with other files and --set data.split=train, or --task world:NAME for the embedded models",
        )


def cache_folder() -> Path:
    """Returns the folder of the target's continuations, which the user's trainings share."""
    return cached_assets_path("specbench", namespace="training", subfolder="continuations")
