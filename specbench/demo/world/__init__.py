"""The synthetic world: one module per kind of task, each a `World` in the table below."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from specbench.demo.world import drill, math


@dataclass(frozen=True)
class World:
    """What the build asks of a kind of task.

    `weights()` is the share of each subset in the training data; `draw(subset, held_out, random)` gives one row;
    `example(row)` its texts, given and learnt in turn: for a task the prompt and the completion.
    """

    task: str
    weights: Callable[[], dict[str, float]]
    draw: Callable[[str, bool, Random], dict[str, Any]]
    example: Callable[[dict[str, Any]], tuple[str, ...]]
    is_task: bool = True


WORLDS = {
    "mgsm": World("mgsm", math.weights, math.draw, math.example),
    "drill": World("drill", drill.weights, drill.draw, drill.example, is_task=False),
}


def training_rows(
    worlds: Mapping[str, float], num_rows: int, random: Random, mix_power: float = 1.0
) -> list[dict[str, Any]]:
    """`num_rows` rows drawn by the shares of the worlds and, inside a world, by weight ** mix_power of the subsets."""
    choices, shares = [], []
    for name, share in worlds.items():
        weights = {subset: weight**mix_power for subset, weight in WORLDS[name].weights().items()}
        choices += [(WORLDS[name], subset) for subset in weights]
        shares += [share * weight / sum(weights.values()) for weight in weights.values()]
    drawn = random.choices(choices, weights=shares, k=num_rows)
    return [{"task": world.task, **world.draw(subset, False, random)} for world, subset in drawn]


def held_out_rows(task: str, num_per_subset: int, random: Random) -> list[dict[str, Any]]:
    """`num_per_subset` different held-out rows for each subset of a task, with ids such as `en-0`."""
    rows: list[dict[str, Any]] = []
    for subset in WORLDS[task].weights():
        questions: set[str] = set()
        while len(questions) < num_per_subset:
            row = WORLDS[task].draw(subset, True, random)
            if row["question"] not in questions:
                questions.add(row["question"])
                rows.append({"task": task, **row, "id": f"{subset}-{len(questions) - 1}"})
    return rows
