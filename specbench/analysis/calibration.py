"""The calibration slice: the examples that a method was tuned on, and that a run of it must leave out."""

import math
from dataclasses import replace
from random import Random

from specbench.core.errors import ConfigError
from specbench.results.bootstrap import MIN_PROMPTS
from specbench.running.blocks import prompt_digest
from specbench.running.calibration import Loaded
from specbench.running.compose import stream_seed
from specbench.specs.method import CalibrationSpec


def choose_slice(loaded: Loaded, amount: str, seed: int) -> Loaded:
    """Returns the examples to tune on, drawn from each subset by the seed. `amount`: a share (0.25) or a number (8) of
    each subset's examples.

    Raises ConfigError for an amount that leaves nothing to evaluate, or too few examples for an interval.
    """
    chosen = []
    for task, subset, data in loaded:
        count = _count(amount, len(data.examples), subset)
        drawn = Random(stream_seed("calibration", seed, task.name, subset)).sample(data.examples, count)
        chosen.append((task, subset, replace(data, examples=tuple(sorted(drawn, key=lambda e: e.index)))))
    total = sum(len(data.examples) for _, _, data in chosen)
    if total < MIN_PROMPTS:
        raise ConfigError(
            f"--calibration {amount}: gives {total} examples in all, but an interval needs {MIN_PROMPTS}: give more, "
            "a larger --limit or more subsets"
        )
    return chosen


def _count(amount: str, num_examples: int, subset: str) -> int:
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    is_share = 0 < number < 1
    if not is_share and not (number >= 1 and number.is_integer()):
        raise ConfigError(f"--calibration {amount}: give a share between 0 and 1, such as 0.25, or a number such as 8")
    count = math.ceil(number * num_examples) if is_share else int(number)
    if count >= num_examples:
        raise ConfigError(
            f"--calibration {amount}: takes all {num_examples} examples of subset '{subset}', so that none is left to "
            "evaluate: give less, or a larger --limit"
        )
    return count


def described(chosen: Loaded) -> CalibrationSpec:
    """Returns the slice as the tuned method's file states it."""
    task, _, data = chosen[0]
    return CalibrationSpec(
        task=task.name, data=f"{data.source} {data.location}", revision=data.revision,
        prompts={
            subset: tuple(prompt_digest(example, turn=0) for example in data.examples) for _, subset, data in chosen
        },
    )  # fmt: skip
