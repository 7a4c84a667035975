"""A task → `eval.yaml`, which makes a data set on the hub a benchmark. It registers no framework there."""

from collections.abc import Sequence

from specbench.core.errors import ConfigError
from specbench.publish.hub.forms import NEEDS, Benchmark, BenchmarkTask
from specbench.publish.hub.results import task_id
from specbench.specs.catalogue import versioned_name
from specbench.specs.components import build
from specbench.specs.task import TaskSpec
from specbench.tasks.hub import fill_fields

OWN = "specbench"


def benchmark_of(
    task: TaskSpec, subsets: Sequence[str] = (), framework: str = OWN, name: str | None = None,
    description: str | None = None,
) -> tuple[str, Benchmark]:  # fmt: skip
    """Returns the data set whose root the file belongs to, and the benchmark with a task for each subset. Raises
    ConfigError for a task without a data set on the hub, for subsets of several data sets, and for a framework that
    runs its own tasks."""
    if framework in NEEDS:
        raise ConfigError(
            f"--framework {framework}: needs {', '.join(NEEDS[framework])} of each task, which run it without "
            f"specbench: write these by hand, or give --framework {OWN}"
        )
    places: dict[str, list[BenchmarkTask]] = {}
    for subset in subsets or task.subset_names:
        dataset = task.subset(subset).dataset
        if dataset is None:
            raise ConfigError(f"task '{task.name}', subset '{subset}': has no data set on the hub: add the key dataset")
        filled = fill_fields(dataset, task.name, subset)
        own = BenchmarkTask(id=task_id(task.name, subset), config=filled.name, split=filled.split)
        places.setdefault(filled.path, []).append(own)
    if len(places) > 1:
        found = "; ".join(f"{place} ({', '.join(each.id for each in own)})" for place, own in places.items())
        raise ConfigError(
            f"task '{task.name}': its subsets are of several data sets, each with its own eval.yaml: choose with "
            f"--subset: {found}"
        )
    ((place, tasks),) = places.items()
    what = (
        "The number of a model is the mean acceptance length τ of speculative decoding: emitted tokens per target "
        f"pass, the target's own token included, by specbench's task {versioned_name(task)}. It depends on target, "
        "drafter, number of draft tokens and sampling, which the notes of each result name."
    )
    content = {
        "name": name or f"{task.title}: acceptance length",
        "description": description or f"{task.title}{f' ({task.paper})' if task.paper else ''}. {what}",
        "evaluation_framework": framework,
        "tasks": tuple(tasks),
    }
    return place, build(Benchmark, content)
