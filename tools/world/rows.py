"""Helpers that all kinds of rows share: word lists, the held-out split, and the texts of a row in the task's prompt."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from specbench.core.values import text_digest
from specbench.specs.catalogue import load_task
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import load_fewshot, render_turns

HELD_OUT_PERCENT = 15


@cache
def tables(name: str) -> dict[str, Any]:
    """Returns the word lists and templates of the file `name`.yaml beside this module."""
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"))
    return data


@cache
def is_held_out_text(content: str) -> bool:
    """Returns whether the combination that `content` spells is kept out of training."""
    return int(text_digest(content, 8), 16) % 100 < HELD_OUT_PERCENT


def is_held_out(*parts: str) -> bool:
    """Returns whether a combination of words, such as a person and a town, is kept out of training."""
    return is_held_out_text(",".join(parts))


def listed_weights(name: str) -> dict[str, float]:
    """Returns the share of each language in the training data, as the file `name`.yaml lists it."""
    entries = tables(name)
    return {language: entry["weight"] for language, entry in entries.get("languages", entries).items()}


def equal_weights(subsets: Iterable[str]) -> dict[str, float]:
    return dict.fromkeys(subsets, 1.0)


def one_subset(name: str = "default") -> dict[str, float]:
    return {name: 1.0}


@cache
def _task(name: str, subset: str) -> TaskSpec:
    task = load_task(name)
    return task.subset(subset) if task.subsets else task


def sample_prompts(task: TaskSpec, row: dict[str, Any]) -> tuple[str, ...]:
    """Returns the prompts of a row of the bundled sample, one per turn, with the few-shot examples before the first.
    `task`: merged with its subset. The row's column `subset` selects the few-shot examples."""
    turns = render_turns(task, row, "row")
    prefix = _sample_prefix(task.model_dump_json(), row.get("subset")) if task.fewshot else ""
    return (prefix + turns[0], *turns[1:])


@cache
def _sample_prefix(task_json: str, subset: str | None) -> str:
    task = TaskSpec.model_validate_json(task_json)
    name = subset or "default"
    return load_fewshot(task.model_copy(update={"subsets": {name: {}} if subset else {}}), name, "sample").prefix


def example_of(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    """Returns given and learnt texts in turn: the prompt of each turn by the task's own template, then its completion.

    `_completion` of the row is one text, or a list with one text per turn. A space separates it from a prompt that ends
    in a letter or a punctuation mark.
    """
    completions = row["_completion"] if isinstance(row["_completion"], list) else [row["_completion"]]
    prompts = sample_prompts(_task(name, row["subset"]), row)
    texts: list[str] = []
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        texts += ["\n\n" * (number > 0) + prompt, completion if prompt[-1:].isspace() else " " + completion]
    return tuple(texts)
