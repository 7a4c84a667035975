"""Which subsets of a task are measured where none is named, and the user's files do not hold all of them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from specbench.console import say
from specbench.data.examples import TaskData, load_examples
from specbench.data.folders import local_files, subsets_with_files
from specbench.data.sources import NoRows
from specbench.errors import ConfigError
from specbench.running.plan import load_data
from specbench.specs import RunSpec, TaskSpec

NAMED = 5  # subsets in a line


def load_asked(spec: RunSpec, use_sample: bool, console: Console) -> list[tuple[TaskSpec, str, TaskData]]:
    """The examples of what was asked for, of each task those of the subsets that are `present`."""
    alone = (spec.model_copy(update={"tasks": (task,)}) for task in spec.tasks)
    return [cell for each in alone for cell in load_data(present(each, console), use_sample)]


def present(spec: RunSpec, console: Console) -> RunSpec:
    """The specification of one task, with the subsets that have files where none was named."""
    if spec.subsets is not None:
        return spec
    return spec.model_copy(update={"subsets": with_files(spec.tasks[0], spec.data, console)})


def with_files(task: TaskSpec, data: str | None, console: Console) -> tuple[str, ...] | None:
    """Of a user's own files the subsets that have rows there; lines name the others. None, which means all, where the
    data are no files, where all have some, and where none has any: then loading says what was looked for."""
    if data in (None, "hub", "sample") or not task.subsets:
        return None
    filed = subsets_with_files(task, Path(data))
    shared = sharing(task, filed, Path(data))
    found = [name for name in filed if name not in shared or has_rows(task, name, data, len(filed))]
    if not found or len(found) == len(task.subset_names):
        return None
    for lacking, names in (("file", set(task.subset_names) - set(filed)), ("rows", set(filed) - set(found))):
        absent = [name for name in task.subset_names if name in names]
        if absent:
            say(console, f"{without(task.name, absent, f'{lacking} in {data}')}: they are not measured")
    return tuple(found)


def sharing(task: TaskSpec, names: Sequence[str], data: Path) -> set[str]:
    """The subsets that have a file in common with another. One with files of its own has its rows there, or loading
    says what is wrong with them."""
    files = {name: set(local_files(task, name, data, num_subsets=1).paths) for name in names}
    num_subsets = Counter(path for paths in files.values() for path in paths)
    return {name for name, paths in files.items() if any(num_subsets[path] > 1 for path in paths)}


def has_rows(task: TaskSpec, subset: str, data: str, num_subsets: int) -> bool:
    """Whether a subset is among the rows of files that other subsets share. What else is wrong is said later."""
    try:
        load_examples(task, subset, data=data, use_sample=False, limit=1, num_subsets=num_subsets)
    except NoRows:
        return False
    except ConfigError:
        return True
    return True


def without(task: str, names: Sequence[str], lacking: str) -> str:
    """The first words of a line about subsets that are left out."""
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return f"{task}: {len(names)} subsets have no {lacking} ({shown})"
