"""The worked examples before a prompt: where they are taken from, and what they look like."""

import hashlib
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

from specbench.data.local import Row
from specbench.data.rendering import render
from specbench.data.rows import rows_of
from specbench.data.shots import Shots, Worked, question
from specbench.data.sources import open_source
from specbench.errors import ConfigError
from specbench.specs import DatasetSpec, FewshotSpec, TaskSpec


def load_shots(task: TaskSpec, subset: str, data: str) -> Shots:
    """The worked examples of a subset, from beside its rows. `data`: "sample", "hub", or a folder or a file."""
    chosen = task.subset(subset)
    spec = chosen.fewshot
    if spec is None or spec.num_shots == 0:
        return Shots()
    if spec.rows:
        own = [(f"fewshot.rows, row {n}", row) for n, row in enumerate(spec.rows, start=1)]
        return _shots(chosen, spec, own, "task", task.name)
    place = _beside(task, chosen, spec, data)
    source = open_source(place, subset, data, num_subsets=1)
    rows = list(islice(rows_of(place, source), spec.num_shots))
    if len(rows) < spec.num_shots:
        raise ConfigError(
            f"{source.location}: holds {len(rows)} few-shot examples, fewshot.num_shots asks {spec.num_shots}: lower it"
        )
    return _shots(chosen, spec, rows, source.kind, source.location)


@cache
def sample_prefix(task_json: str, subset: str | None) -> str:
    """The text before the prompts of a task on its bundled sample. `task_json`: the task, merged with its subset."""
    task = TaskSpec.model_validate_json(task_json)
    name = subset or "default"
    return load_shots(task.model_copy(update={"subsets": {name: {}} if subset else {}}), name, "sample").prefix


def hub_place(task: TaskSpec, subset: str) -> DatasetSpec | None:
    """Where the worked examples of a subset are on the hub; None when they are not taken from there."""
    chosen = task.subset(subset)
    spec = chosen.fewshot
    if spec is None or spec.num_shots == 0 or spec.rows:
        return None
    return _beside(task, chosen, spec, "hub").dataset


def _beside(task: TaskSpec, chosen: TaskSpec, spec: FewshotSpec, data: str) -> TaskSpec:
    """The task with the places of its worked examples instead of its rows. Raises ConfigError where there is none."""
    problem = None
    if data == "sample":
        problem = None if spec.sample else "have no bundled sample (fewshot.sample)"
    elif data == "hub":
        problem = None if spec.split or spec.data_files else "have no split on the hub (fewshot.split)"
    elif Path(data).is_file():
        problem = "are not in the one file that --data names: give the folder that holds both"
    elif spec.local is None:
        problem = "have no local files (fewshot.local.files)"
    if problem:
        raise ConfigError(
            f"task '{task.name}': its few-shot examples {problem}, write fewshot.rows, or leave them out with "
            "--set fewshot.num_shots=0"
        )
    changes = {key: value for key, value in (("split", spec.split), ("data_files", spec.data_files)) if value}
    every_row = {"first_rows": None, "last_rows": None}
    dataset = chosen.dataset and chosen.dataset.model_copy(update={**changes, **every_row})
    places = {"dataset": dataset, "local": spec.local or chosen.local, "sample": spec.sample, "fewshot": None}
    return chosen.model_copy(update={**places, "subsets": {name: {} for name in task.subsets}})


def _shots(
    task: TaskSpec, spec: FewshotSpec, rows: list[tuple[str, Row]], source: Literal["task", "hub", "local", "sample"],
    location: str,
) -> Shots:  # fmt: skip
    texts = [render(task, "fewshot.example", spec.example, place, row) for place, row in rows[: spec.num_shots]]
    asked = frozenset(question(task, row, place) for place, row in rows[: spec.num_shots])
    prefix = "".join(text + spec.separator for text in texts)
    digest = hashlib.sha256(prefix.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return Shots(prefix, asked, Worked(spec.num_shots, source, location, digest))
