"""The texts of a row as a run of its task meets them: the prompt by the task's own template, and the completion."""

from functools import cache
from typing import Any

from specbench.specs.catalogue import load_task
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import prompts_of


@cache
def _task(name: str, subset: str) -> TaskSpec:
    task = load_task(name)
    return task.subset(subset) if task.subsets else task


def example_of(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    """Given and learnt texts in turn: each turn's prompt, and its completion (`_completion`: one text, or one per turn)
    after a space where the prompt ends in a letter or a mark."""
    completions = row["_completion"] if isinstance(row["_completion"], list) else [row["_completion"]]
    prompts = prompts_of(_task(name, row["subset"]), row)
    texts: list[str] = []
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        texts += ["\n\n" * (number > 0) + prompt, completion if prompt[-1:].isspace() else " " + completion]
    return tuple(texts)
