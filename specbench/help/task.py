"""What a task asks, how its answers are sampled and scored, and where its rows are."""

import shlex
from typing import Any, Literal

from pydantic import BaseModel

from specbench.data.examples import load_examples
from specbench.help.method import prose
from specbench.specs import TaskSpec


class TaskHelp(BaseModel):
    """`prompt`: of the first sample row of the first subset, or, without a sample, that subset's template."""

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
    """Everything about a task, which was asked for as `call`: by name or path."""
    subset = task.subset_names[0]
    chosen = task.subset(subset)
    prompt, reference, place = chosen.prompt, chosen.reference, f"template, subset {subset}"
    if task.sample:
        example = load_examples(task, subset, data="sample", use_sample=True, limit=1).examples[0]
        prompt, reference, place = example.prompt, example.reference, f"first sample row of {subset}"
    return TaskHelp(
        name=task.name, version=task.version, title=task.title, paper=task.paper, subsets=list(task.subset_names),
        prompt_of=place, prompt=prompt, reference=reference, generation=chosen.generation.model_dump(),
        scorer=chosen.scorer.model_dump() if chosen.scorer else None,
        scorer_text=prose(chosen.scorer.factory) if chosen.scorer else "",
        hub=chosen.dataset.model_dump(exclude_none=True) if chosen.dataset else None, local=list(chosen.local.files),
        has_sample=task.sample is not None, commands=commands(task, call),
    )  # fmt: skip


def commands(task: TaskSpec, call: str) -> list[str]:
    plain = f"specbench run --task {shlex.quote(call)} --method sd"
    return [plain, f"{plain} --data FOLDER_OR_FILE"] if task.sample else [f"{plain} --data FOLDER_OR_FILE"]
