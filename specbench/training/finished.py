"""A finished training: whether it is the one that is asked for again, and the command that measures its drafter."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench import bounded
from specbench.demo.family import source_of
from specbench.errors import ConfigError
from specbench.files import TRAINING_RECORD
from specbench.models.revisions import identified
from specbench.training.data import load_data
from specbench.training.files import WITHOUT_EFFECT, differences
from specbench.training.spec import TrainSpec
from specbench.training.world_data import WORLD, is_measured


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
