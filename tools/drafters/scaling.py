"""Speed-up as a function of the tokens a drafter is fine-tuned on (arXiv:2406.16758, figure 4).

`F`: fine-tuned from random weights; `P-F`: pretrained on the pair's texts before it; `drafter-F`: from the plain
drafter.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from specbench.analysis.fairness.fairness import read_run
from specbench.embedded import member_path
from specbench.records.records import Generation
from specbench.report.display import reach, save_picture
from specbench.statistics.bootstrap import Estimate, expanded_confidence, ratio_of, resamples

from .measuring import measure, write_held_out
from .trainings import stage
from .workplace import Workplace, checkpoint

NUM_PROMPTS = (16, 64, 256, 1024)
NUM_ROWS = 96
SEEDS = (0, 1)
RATES = "3e-4,1e-3,3e-3,1e-2,3e-2"  # the held-back loss chooses
EPOCHS = {"F": 5, "P-F": 3, "drafter-F": 3}  # the paper's: without and with pretraining
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """A fine-tuned drafter: its method, where it began, the tokens of an epoch of its training, and what it came to.
    `rate`: the learning rate that was chosen."""

    method: str
    start: str
    seed: int
    num_tokens: int
    rate: float
    acceptance: Estimate
    speedup: Estimate
    gain: Estimate  # of α, over the start as it was


@dataclass(frozen=True)
class Scaling:
    """The points; by start the slopes of speed-up and of acceptance rate on ln tokens; of the start itself, untuned,
    acceptance and speed-up."""

    points: Sequence[Point]
    slopes: Mapping[str, tuple[Estimate, Estimate]]
    untuned: Mapping[str, tuple[Estimate, Estimate]]


def scaling(place: Workplace) -> Scaling:
    """Fine-tunes from every start on ever more prompts, and measures all drafters in one run."""
    starts = {"F": random_start(place), "P-F": pretrained(place), "drafter-F": "embedded:drafter"}
    place.write_yaml("configs/finetune.yaml", finetuning())
    made = {
        (start, seed, count): fine_tune(place, start, starts[start], seed, count)
        for start in starts for seed in SEEDS for count in NUM_PROMPTS
    }  # fmt: skip
    methods = {key: place.method(folder.rpartition("/")[2].lower(), checkpoint(folder)) for key, folder in made.items()}
    untuned = {start: place.method(f"{start.lower()}-0", checkpoint(folder)) for start, folder in starts.items()}
    data = write_held_out(place, "wmt", NUM_ROWS, ["de-en"])
    run = measure(place, "scaling", "wmt", [*untuned.values(), *methods.values()], data, "--subset", "de-en")
    columns = columns_of(place.path(run))
    points = []
    for (start, seed, count), folder in made.items():
        name = Path(methods[start, seed, count]).stem
        gain = columns.gain(name, Path(untuned[start]).stem)
        points.append(Point(name, start, seed, *told_of(place, folder), *columns.rows[name], gain))
    slopes = {start: columns.slopes([point for point in points if point.start == start]) for start in starts}
    return Scaling(points, slopes, {start: columns.rows[Path(name).stem] for start, name in untuned.items()})


def random_start(place: Workplace) -> str:
    """A drafter of the plain one's shape that has learnt nothing."""
    folder = place.path("trained", "random")
    if not (folder / "config.json").exists():
        source = member_path("drafter")
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source)).save_pretrained(folder)
        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return "trained/random"


def pretrained(place: Workplace) -> str:
    """From random weights, through the pretraining of the shipped drafter-pretrain-finetune."""
    settings = stage("drafter-pretrain-finetune", 0)
    place.write_yaml("configs/pretrain.yaml", {**settings, "learning_rate": 1e-2})
    place.specbench(
        "trained/pretrained/training.json", "train", "finetune", "--config", "configs/pretrain.yaml",
        "--drafter", "trained/random", "--output", "trained/pretrained",
    )  # fmt: skip
    return "trained/pretrained"


def finetuning() -> dict[str, object]:
    """The fine-tuning of the shipped member, but for the number of prompts, with a tenth held out to choose a rate."""
    settings = stage("drafter-pretrain-finetune", 1)
    del settings["data"]["limit"], settings["learning_rate"]
    return {**settings, "finetune": {"validation_share": 0.1}}


def fine_tune(place: Workplace, start: str, drafter: str, seed: int, count: int) -> str:
    folder = f"trained/{start}-{count}-seed{seed}"
    place.specbench(
        f"{folder}/training.json", "train", "finetune", "--config", "configs/finetune.yaml", "--drafter", drafter,
        "--limit", str(count), "--seed", str(seed), "--learning-rate", RATES, "--set",
        f"finetune.epochs={EPOCHS[start]}", "--output", folder,
    )  # fmt: skip
    return folder


def told_of(place: Workplace, folder: str) -> tuple[int, float]:
    """The tokens of an epoch, as the paper counts them: of all answers, the same ones at other temperatures too; and
    the learning rate that was chosen."""
    record = json.loads(place.path(folder, "training.json").read_text(encoding="utf-8"))
    curve = record["curves"][record["chosen"]]
    num_tokens = sum(step["num_tokens"] for step in curve["steps"]) / record["settings"]["finetune"]["epochs"]
    return int(num_tokens + 0.5), float(curve["learning_rate"])


@dataclass(frozen=True)
class Columns:
    """The columns of every method per prompt: tokens and seconds of its decoding and of AR's [4, num_prompts], its
    acceptance rate and whether it has one [2, num_prompts]; and α and speed-up of its row."""

    speeds: Mapping[str, Array]
    rates: Mapping[str, Array]
    rows: Mapping[str, tuple[Estimate, Estimate]]

    def gain(self, method: str, start: str) -> Estimate:
        """α of a method − that of its start, on the same prompts."""
        return combined([self.rates[method], self.rates[start]], np.array([1.0, -1.0]))

    def slopes(self, points: Sequence[Point]) -> tuple[Estimate, Estimate]:
        """Returns the slopes of speed-up and of α per factor e of the tokens: least squares over the points, prompts
        drawn anew for all of them at once."""
        logs = np.log([point.num_tokens for point in points])
        weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
        speeds, rates = ([each[point.method] for point in points] for each in (self.speeds, self.rates))
        return combined(speeds, weights), combined(rates, weights)


def combined(columns: Sequence[Array], weights: Array) -> Estimate:
    """Σ weight · ratio, with its interval: prompts are drawn anew for all columns at once, expanded percentiles."""
    num_prompts = columns[0].shape[1]
    value = sum(w * ratio_of(c.sum(axis=1)) for w, c in zip(weights, columns, strict=True))
    drawn = np.concatenate([
        sum(w * ratio_of(counts @ c.T) for w, c in zip(weights, columns, strict=True))
        for counts in resamples(num_prompts, 0)
    ])  # fmt: skip
    share = expanded_confidence(num_prompts)
    low, high = np.quantile(drawn, [(1 - share) / 2, (1 + share) / 2])
    return Estimate(value=float(value), low=float(low), high=float(high))


def columns_of(folder: Path) -> Columns:
    """Returns the columns of a run on one subset."""
    run, methods = read_run(str(folder))
    speeds: dict[str, list[list[float]]] = {}
    rates: dict[str, list[list[float]]] = {}
    for record in run.records.values():
        of_ar = timed(record.methods["ar"])
        for method in methods:
            own = record.methods[method]
            num_verified, accepted = own.num_verified, own.num_accepted
            speeds.setdefault(method, []).append([*timed(own), *of_ar])
            rates.setdefault(method, []).append(
                [accepted / num_verified if num_verified else 0.0, float(num_verified > 0)]
            )
    rows = {
        method: (row.metrics["acceptance_rate"], row.metrics["speedup"])
        for method in methods
        for row in run.rows_of(method)
        if row.subset == "de-en"
    }
    arrays = ({name: np.array(found).T for name, found in each.items()} for each in (speeds, rates))
    return Columns(next(arrays), next(arrays), rows)


def timed(generation: Generation) -> list[float]:
    """Tokens after the first one, and the seconds that they took."""
    return [float(generation.num_timed_tokens), generation.decode_seconds]


def draw(found: Scaling, path: Path) -> None:
    """Speed-up over the tokens, on a logarithmic axis, a line for each start."""

    def panel(axes: Any) -> None:
        for number, start in enumerate(found.slopes):
            points = sorted((p for p in found.points if p.start == start), key=lambda point: point.num_tokens)
            metrics = [point.speedup for point in points]
            axes.errorbar([p.num_tokens for p in points], [m.value for m in metrics], yerr=reach(metrics), fmt="o-",
                          capsize=3, color=f"C{number}", label=start)  # fmt: skip
            axes.axhline(found.untuned[start][1].value or 0.0, color=f"C{number}", linestyle=":", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xlabel("tokens of an epoch of the fine-tuning (dotted: untuned)")
        axes.set_ylabel("speed-up over AR, 95 %")
        axes.legend(frameon=False)

    save_picture([[panel]], path, size=(8, 4.5))
