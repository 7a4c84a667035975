"""The help of a task: prompt, reference answer, generation, scorer and data."""

import shlex
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from specbench.cli.help.method import prose
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import load_examples
from specbench.tasks.scoring.contract import Reference


class TaskHelp(BaseModel):
    """The help of a task.

    `prompt` is rendered from the first sample row of the first subset with a sample. Without samples it is the template
    of the first subset. For a conversation it has all turns of the user.
    """

    kind: Literal["task"] = "task"
    name: str
    version: int
    title: str
    paper: str | None
    subsets: list[str]
    prompt_of: str
    prompt: str
    reference: str | None
    generation: dict[str, Any]
    scorer: dict[str, Any] | None
    scorer_text: str
    hub: dict[str, Any] | None
    local: list[str]
    has_sample: bool
    commands: list[str]


def task_help(task: TaskSpec, call: str) -> TaskHelp:
    """Returns the help of a task. `call`: the name or path given by the user."""
    subset = next((name for name in task.subset_names if task.sample_of(name)), task.subset_names[0])
    part = task.subset(subset)
    prompt, place = part.prompt, f"template, subset {subset}"
    reference = as_text(part.reference or (f"each of column {part.references}" if part.references else None))
    if task.has_sample:
        example = load_examples(task, subset, data="sample", use_sample=True, limit=1).examples[0]
        prompt, place = "\n\n(the answer)\n\n".join(example.turns), f"first sample row of {subset}"
        reference = as_text(example.reference)
    aligned = [" and ".join(part.local.parallel.values())] if part.local.parallel else []
    return TaskHelp(
        name=task.name, version=task.version, title=task.title, paper=task.paper, subsets=list(task.subset_names),
        prompt_of=place, prompt=prompt, reference=reference, generation=part.generation.model_dump(),
        scorer=part.scorer.model_dump() if part.scorer else None,
        scorer_text=prose(part.scorer.factory) if part.scorer else "",
        hub=part.dataset.model_dump(exclude_none=True, exclude_defaults=True) if part.dataset else None,
        local=[*part.local.files, *aligned], has_sample=task.has_sample, commands=commands(task, call),
    )  # fmt: skip


def as_text(reference: Reference | None) -> str | None:
    """Returns a reference as text: alternatives separated by bars, or a mapping with one entry per line."""
    if isinstance(reference, Mapping):
        return "\n".join(f"{name}: {text}" for name, text in reference.items())
    return " | ".join(reference) if isinstance(reference, list) else reference


def commands(task: TaskSpec, call: str) -> list[str]:
    plain = f"specbench run --task {shlex.quote(call)} --method sd"
    return [plain, f"{plain} --data FOLDER_OR_FILE"] if task.has_sample else [f"{plain} --data FOLDER_OR_FILE"]
