"""Leaves out the examples that a method was tuned on."""

from collections.abc import Sequence
from dataclasses import replace

from specbench.core.errors import ConfigError
from specbench.running.blocks import prompt_digest
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import TaskData

Loaded = Sequence[tuple[TaskSpec, str, TaskData]]


def without_calibration(loaded: Loaded, methods: Sequence[MethodSpec]) -> Loaded:
    """Returns the examples that none of the methods was tuned on. Raises ConfigError if a subset has no others."""
    specs = [method.calibration for method in methods if method.calibration is not None]
    left = []
    for task, subset, data in loaded:
        used = {digest for spec in specs if spec.task == task.name for each in spec.prompts.values() for digest in each}
        kept = tuple(example for example in data.examples if prompt_digest(example, turn=0) not in used)
        if not kept:
            raise ConfigError(
                f"{data.location}: all {len(data.examples)} examples of {task.name}/{subset} were used to tune a "
                "method: give a larger --limit or other data"
            )
        left.append((task, subset, replace(data, examples=kept)))
    return left
