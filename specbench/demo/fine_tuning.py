"""Making a member by trainings of another one: what `specbench train` does, in a temporary folder."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.demo.family import digest_of
from specbench.demo.recipe import TrainedMember
from specbench.demo.storage import copy
from specbench.files import TRAINING_RECORD
from specbench.specs.components import build
from specbench.training.command import make
from specbench.training.record import TrainingRecord
from specbench.training.spec import TrainSpec

OF_THE_TRAINING = ("log.csv", "curves.png", TRAINING_RECORD)  # what the build's log tells of it is enough


def make_trained(recipe: TrainedMember, output: Path) -> dict[str, Any]:
    """Train the member through its stages into its folder; returns the digests of what it was made from, and the losses
    of each stage."""
    made: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        drafter = output / recipe.start
        for number, stage in enumerate(recipe.stages):
            trained = Path(temporary) / f"stage-{number}"
            models = {"target": str(output / "target"), "drafter": str(drafter), "output": str(trained)}
            spec = build(TrainSpec, {**stage, **models})
            record = make(spec, Console(quiet=True), Path(temporary))
            assert record is not None
            made.append(told(record, stage))
            drafter = trained
        copy(drafter, output / recipe.name, without=OF_THE_TRAINING)
    made_from = {name: digest_of(output / name)[0] for name in ("target", recipe.start)}
    return {"made_from": made_from, "trainings": made}


def told(record: TrainingRecord, stage: Mapping[str, Any]) -> dict[str, Any]:
    """What the build's log keeps of a training."""
    curve = record.curves[record.chosen]
    return {
        "kind": stage["kind"],
        "num_steps": record.settings["num_steps"],
        "learning_rate": curve["learning_rate"],
        "held_back_loss": curve["held_back_loss"],
        "first_loss": mean_loss(curve["steps"][:20]),
        "last_loss": mean_loss(curve["steps"][-20:]),
        "num_prompts": sum(record.data["languages"].values()),
    }


def mean_loss(steps: list[dict[str, Any]]) -> dict[str, float]:
    """The mean loss of each language over some steps, of those that it was drawn in."""
    losses: dict[str, list[float]] = {}
    for step in steps:
        for language, loss in step["loss"].items():
            losses.setdefault(language, []).append(loss)
    return {language: round(sum(found) / len(found), 4) for language, found in sorted(losses.items())}
