"""s-CDF and its baseline of equal weights, at four learning rates and three seeds; distillation on the same task."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.embedded.build import mean_loss
from tools.embedded.recipes import MEMBERS, TrainedMember

from .workplace import Workplace

WEIGHTINGS = ("equal", "corrective")
RATES = ("1e-3", "2e-3", "4e-3", "8e-3")
SEEDS = (0, 1, 2)
LAST_STEPS = 20


@dataclass(frozen=True)
class Trained:
    """The folders of the drafters: by weighting, the chosen rate and the folder of every seed at it; `divergences`: of
    every rate the mean over the languages of D in the last steps of seed 0, which chooses."""

    rates: Mapping[str, str]
    folders: Mapping[str, tuple[str, ...]]
    divergences: Mapping[str, Mapping[str, float]]


def stage(name: str, number: int = 0) -> dict[str, Any]:
    """The settings of a training of a shipped member."""
    recipe = MEMBERS[name]
    assert isinstance(recipe, TrainedMember)
    settings: dict[str, Any] = json.loads(json.dumps(recipe.stages[number]))
    return settings


def train_all(place: Workplace) -> Trained:
    """Trains what is not there yet; the learning rate is chosen on seed 0, for both weightings in the same way."""
    for weighting in WEIGHTINGS:
        settings = stage("drafter-scdf")
        settings["scdf"]["weighting"] = weighting
        kept = {key: value for key, value in settings.items() if key not in ("learning_rate", "log_every")}
        place.write_yaml(f"configs/{weighting}.yaml", kept)
    divergences = {w: {rate: last_divergence(place, train(place, w, rate, 0)) for rate in RATES} for w in WEIGHTINGS}
    rates = {weighting: min(found, key=found.__getitem__) for weighting, found in divergences.items()}
    folders = {w: tuple(train(place, w, rates[w], seed) for seed in SEEDS) for w in WEIGHTINGS}
    return Trained(rates, folders, divergences)


def train(place: Workplace, weighting: str, rate: str, seed: int) -> str:
    """Trains one drafter; returns its folder."""
    folder = f"trained/{weighting}-{rate}-seed{seed}"
    place.specbench(
        f"{folder}/training.json", "train", "scdf", "--config", f"configs/{weighting}.yaml", "--learning-rate", rate,
        "--seed", str(seed), "--output", folder,
    )  # fmt: skip
    return folder


def last_divergence(place: Workplace, folder: str) -> float:
    """The mean over the languages of D in the last steps, on training rows."""
    record = json.loads(place.path(folder, "training.json").read_text(encoding="utf-8"))
    losses = mean_loss(record["curves"][record["chosen"]]["steps"][-LAST_STEPS:])
    return sum(losses.values()) / len(losses)


def distil(place: Workplace) -> str:
    """Distillation as of the shipped drafter-distill-task, on the questions of mgsm; returns the folder."""
    settings = stage("drafter-distill-task")
    settings["data"]["tasks"] = ["world:mgsm"]
    place.write_yaml("configs/distill-mgsm.yaml", settings)
    place.specbench(
        "trained/distill-mgsm/training.json", "train", "distill", "--config", "configs/distill-mgsm.yaml",
        "--output", "trained/distill-mgsm",
    )  # fmt: skip
    return "trained/distill-mgsm"


def count_bigrams(place: Workplace, task: str, subsets: str) -> str:
    """A bigram model of training rows, as many of each language; returns the folder."""
    folder = f"trained/bigrams-{task}"
    place.specbench(
        f"{folder}/training.json", "train", "ngram", "--task", f"world:{task}", "--subset", subsets, "--limit", "2000",
        "--order", "2", "--output", folder,
    )  # fmt: skip
    return folder
