"""`specbench train scdf | distill | finetune`: settings → data, models, objective → a trained checkpoint."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import cached_assets_path
from rich.console import Console

from specbench.core import bounded
from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD
from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.embedded.family import source_of
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import identified
from specbench.training.cost import Meter
from specbench.training.data import WORLD, TrainingData, is_measured, load_data, total_steps
from specbench.training.files import WITHOUT_EFFECT, OutputFolder, differences
from specbench.training.objectives import build_objective
from specbench.training.progress import saying_what_is_kept
from specbench.training.record import FORMAT, TrainingRecord, data_of, settings_of
from specbench.training.settings import settings
from specbench.training.spec import TrainSpec
from specbench.training.train import check_fit, device_of, dtype_of, load_drafter, load_target, make_accelerator, train


def is_finished(spec: TrainSpec) -> bool:
    """Whether the output folder holds what these settings, data and models give. Raises ConfigError, with what differs,
    where it holds another training of the same kind; of anything else the answer is no."""
    try:
        record = bounded.read_json(Path(spec.output) / TRAINING_RECORD, "train it again", strict=False)
        made, kind, digest = record["settings"], record["settings"]["kind"], record["data"]["digest"]
        revisions = {name: record["models"][name]["revision"] for name in ("target", "drafter")}
    except (ConfigError, LookupError, TypeError):
        return False
    if kind != spec.kind:
        return False
    asked = {key: value for key, value in spec.model_dump(mode="json").items() if key not in WITHOUT_EFFECT}
    if spec.num_steps is None:  # as many as the data take
        del asked["num_steps"]
    check_same(spec, {key: made.get(key) for key in asked}, asked)
    check_same(spec, {"data_digest": digest, "revisions": revisions}, {
        "data_digest": load_data(spec).digest, "revisions": {
            "target": revision_of(spec.target, spec.target_revision),
            "drafter": revision_of(spec.drafter, spec.drafter_revision),
        },
    })  # fmt: skip
    return True


def check_same(spec: TrainSpec, made: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise ConfigError for what differs."""
    changed = differences(made, asked)
    if changed:
        raise ConfigError(
            f"--output {spec.output}: a finished training with other settings is there ({changed}): choose another "
            "--output, or delete it"
        )


def revision_of(name: str, revision: str | None) -> str | None:
    """What `CausalLM.revision` is of a model that is loaded by its name."""
    source = source_of(name)
    return identified(source, revision)


def measuring(settings: Mapping[str, Any], folder: Path) -> str:
    """The command that measures a trained drafter: on the tasks that it was trained for, or on TASK without one."""
    data = settings["data"]
    names = [name.removeprefix(WORLD) for name in data["tasks"]]
    known = [name for name, given in zip(names, data["tasks"], strict=True) if name == given or is_measured(name)]
    words = ["--task", ",".join(dict.fromkeys(known)) or "TASK", "--method", "sd", "--drafter", str(folder)]
    if settings["target"] != TrainSpec.model_fields["target"].default:
        words += ["--target", settings["target"]]
    if settings["target_revision"] is not None:
        words += ["--target-revision", settings["target_revision"]]
    if data["subsets"] is not None:
        words += ["--subset", ",".join(data["subsets"])]
    return shlex.join(["specbench", "run", *words])


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
