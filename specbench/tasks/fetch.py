"""Downloads the files of tasks from the hub before a run."""

from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Console

from specbench.core.console import counted
from specbench.core.errors import ConfigError, nearest
from specbench.specs.catalogue import load_task
from specbench.specs.overrides import with_overrides
from specbench.specs.task import DatasetSpec, TaskSpec
from specbench.tasks import hub
from specbench.tasks.prompts import fewshot_dataset

FETCH_REMEDY = "repeat this when the hub answers, or run with files of your own (specbench run --data FOLDER)"


def fetch_tasks(
    names: Sequence[str], subsets: Sequence[str] | None, overrides: Sequence[str], console: Console
) -> Iterator[str]:
    """Downloads the files of some subsets of tasks, with their few-shot examples, each file once. Prints each file on
    `console` and yields a line for each finished split.

    Raises ConfigError for an unknown task or subset, a task that is not on the hub, a task that takes only the first
    rows of its files, and any failure of the hub.
    """
    tasks = load_tasks(names, subsets, overrides)
    if not tasks:
        raise ConfigError("--task is empty: name at least one")
    wanted: dict[DatasetSpec, str] = {}
    for task in tasks:
        for subset in task.subset_names:
            for dataset in hub_locations(task, subset) if subsets is None or subset in subsets else ():
                wanted.setdefault(dataset, f"{task.name}/{subset}")
    for dataset, name in wanted.items():
        if dataset.first_rows is not None:  # the other rows would be downloaded for nothing
            raise ConfigError(
                f"{name}: takes the first {dataset.first_rows:,} rows of {dataset.path}, which a run streams, so "
                "nothing is fetched ahead: choose other tasks or subsets, or fetch all its files with "
                "--set dataset.first_rows=null"
            )
    for dataset, name in wanted.items():
        yield f"{name}: {hub.try_locations(dataset, partial(fetch_split, console=console))}"


def load_tasks(names: Sequence[str], subsets: Sequence[str] | None, overrides: Sequence[str]) -> list[TaskSpec]:
    """Returns the tasks with their overrides. Raises ConfigError for an unknown task or key, and for a subset that no
    task has."""
    tasks, _ = with_overrides([load_task(name) for name in dict.fromkeys(names)], [], overrides)
    known = {name for task in tasks for name in task.subset_names}
    for name in subsets or ():
        if name not in known:
            raise ConfigError(f"--subset {name}: none of the tasks has it: {nearest(name, known)}")
    return tasks


def hub_locations(task: TaskSpec, subset: str) -> list[DatasetSpec]:
    """Returns where a subset's rows and its few-shot examples are on the hub."""
    dataset = task.subset(subset).dataset
    if dataset is None:
        raise ConfigError(f"task '{task.name}', subset '{subset}': is not on the hub: run it with --data FOLDER")
    shots = fewshot_dataset(task, subset)
    return [hub.fill_fields(location, task.name, subset) for location in (dataset, shots) if location is not None]


def fetch_split(dataset: DatasetSpec, console: Console) -> str:
    """Downloads the files of one split. Returns a line with their location, the numbers of rows and bytes, and their
    paths."""
    try:
        commit, sizes = hub.list_files(dataset)
        paths = []
        for name, size in sizes.items():
            size_note = "" if size is None else f" ({size:,} bytes)"
            console.print(f"fetching {dataset.path} {name}{size_note}", markup=False, highlight=False, soft_wrap=True)
            paths.append(hub.download(dataset, commit, name))
        hub.write_note(dataset, commit, list(sizes))
    except ConfigError:
        raise
    except Exception as error:  # no connection, gated, a full disk: many classes of several libraries
        raise hub.make_error(dataset, error, remedy=FETCH_REMEDY) from error
    num_rows = sum(1 for _ in hub.read_rows(dataset, commit))
    num_bytes = sum(path.stat().st_size for path in paths)
    where = paths[0] if len(paths) == 1 else f"{paths[0]} … ({len(paths)} files)"
    counts = f"{counted(num_rows, 'row')}, {counted(num_bytes, 'byte')}"
    return f"{hub.location(dataset)} at {commit[:12]}: {counts}: {where}"
