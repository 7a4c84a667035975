"""Rows of benchmark tasks for training: another split than the measured one, or the measured one and said so."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.data.examples import TaskData, load_examples
from specbench.errors import ConfigError
from specbench.scoring.contract import Reference
from specbench.specs import TaskSpec
from specbench.specs.components import build
from specbench.training.data_spec import DataSpec


@dataclass(frozen=True)
class TaskPrompts:
    """Prompts and answers of one language from one place. `is_measured`: `specbench run` takes the same rows."""

    language: str
    place: str
    pairs: list[tuple[str, str | None]]
    is_measured: bool = False


def task_prompts(spec: DataSpec, tasks: Sequence[TaskSpec]) -> list[TaskPrompts]:
    """The prompts of every subset of the tasks that is asked for."""
    chosen = [(task, subset) for task in tasks for subset in task.subset_names if wanted(task, subset, spec)]
    return [prompts_of(task, subset, spec, sum(task is other for other, _ in chosen)) for task, subset in chosen]


def wanted(task: TaskSpec, subset: str, spec: DataSpec) -> bool:
    """Whether a subset is asked for; of the bundled samples all that there are."""
    if spec.subsets is not None and task.subsets:
        return subset in spec.subsets
    return spec.source != "sample" or task.sample_of(subset) is not None


def in_split(task: TaskSpec, spec: DataSpec) -> TaskSpec:
    """The task with its rows taken from the split that was asked for."""
    if spec.split is None:
        return task
    if spec.source == "sample":
        raise ConfigError(f"data.split = '{spec.split}': the bundled samples have one split: leave it out")
    data = task.model_dump()
    parts = [part for part in (data, *data["subsets"].values()) if part.get("dataset")]
    if any(part["dataset"].get("split") == spec.split for part in parts):
        raise ConfigError(f"data.split = '{spec.split}': is the split that task '{task.name}' measures: leave it out")
    for part in parts:
        part["dataset"]["split"] = spec.split
    return build(TaskSpec, data, prefix=f"data.split = '{spec.split}': task '{task.name}': ")


def prompts_of(task: TaskSpec, subset: str, spec: DataSpec, num_subsets: int) -> TaskPrompts:
    """The first turns of a subset's examples."""
    data: TaskData = load_examples(
        task, subset, data=spec.source, use_sample=False, limit=spec.limit, num_subsets=num_subsets
    )
    if spec.split is not None and data.source == "local" and spec.split not in data.location:
        raise ConfigError(
            f"data.split = '{spec.split}': task '{task.name}' reads {data.location}, which is not named after it: give "
            "--data a file or folder that is"
        )
    pairs = [(example.prompt, answer_of(example.reference)) for example in data.examples]
    language = subset if task.subsets else task.language or task.name
    return TaskPrompts(language, f"{task.name} ({data.location})", pairs, is_measured=spec.split is None)


def answer_of(reference: Reference | None) -> str | None:
    """A reference as one text: of several right ones the first."""
    if isinstance(reference, list):
        return reference[0]
    return reference if isinstance(reference, str) else None
