"""`specbench list`, `show`, `validate` and `fetch`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import flag, takes_run_options
from specbench.cli.arguments import split as parts
from specbench.cli.help.method import MethodHelp, verdict
from specbench.cli.help.text import find_help, method_text, shown, task_text
from specbench.core.console import fail, stderr, stdout
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import BRIDGES, DRAFTERS, RULES, SCORERS
from specbench.core.table import Column, Table
from specbench.specs.catalogue import load_method, load_task, method_names, task_names
from specbench.specs.method import MethodSpec
from specbench.specs.run_options import RunOptions
from specbench.specs.task import TaskSpec

# Names are not wrapped, so that they can be copied; papers and the longest subset fit in a line.
WIDTHS = {"paper": len("arXiv:2211.17192"), "subsets": len("high_school_geography")}


def columns(*headings: str) -> list[Column]:
    return [Column(heading, folds=heading != "name", min_width=WIDTHS.get(heading)) for heading in headings]


def tasks_table() -> Table:
    """Returns a table of the tasks; `*` marks tasks without a bundled sample."""
    rows = []
    for task in map(load_task, task_names()):
        scorers = dict.fromkeys(one.type for name in task.subset_names if (one := task.subset(name).scorer))
        name = task.name if task.has_sample else f"{task.name} *"
        subsets = " ".join(task.subset_names)
        rows.append([name, task.title, task.paper or "–", subsets, " ".join(scorers) or "–"])
    return Table("tasks (* needs --data or the hub)", columns("name", "title", "paper", "subsets", "score"), rows)


def methods_table() -> Table:
    """Returns a table of the methods."""
    methods = map(load_method, method_names())
    rows = [[each.name, each.title, each.paper or "–", verdict(each)[0], needs(each)] for each in methods]
    return Table("methods", columns("name", "title", "paper", "lossless", "needs"), rows)


def components_table() -> Table:
    """Returns a table of all drafters, verification rules, vocabulary bridges and scorers."""
    rows = []
    for registry in (DRAFTERS, RULES, BRIDGES, SCORERS):
        for name in registry.names():
            fields = registry.options_model(name).model_fields.items()
            options = ", ".join(
                key if field.is_required() else f"{key}: {shown(field.get_default(call_default_factory=True))}"
                for key, field in fields
            )
            rows.append([registry.kind, name, options or "–"])
    return Table("components of methods and tasks", columns("component", "name", "options and their defaults"), rows)


def metrics_table() -> Table:
    """Returns a table of the metrics of a row."""
    from specbench.results.units import MEANINGS  # imports scipy, which the other tables do not need

    rows = [[name, unit, meaning] for name, (unit, meaning) in MEANINGS.items()]
    return Table("metrics of a leaderboard row", columns("name", "unit", "meaning"), rows)


TABLES: Mapping[str, Callable[[], Table]] = {
    "tasks": tasks_table, "methods": methods_table, "components": components_table, "metrics": metrics_table
}  # fmt: skip


def needs(method: MethodSpec) -> str:
    """Returns the models that a method needs."""
    if not method.needs_drafter:
        return "target"
    own = all(part.checkpoint for part in method.parts if part.needs_drafter)
    return ("target, its own drafter" if own else "target, drafter") + " with its vocabulary" * method.same_vocabulary


def list_(
    kind: Annotated[str, typer.Argument(help="tasks, methods, components or metrics; all if absent.")] = "all",
) -> None:
    """List tasks, methods and components (built-in ones and those of plug-ins), and the meaning of the metrics."""
    if kind != "all" and kind not in TABLES:
        raise ConfigError(f"specbench list {kind}: unknown kind '{kind}': {nearest(kind, TABLES)}")
    for name, make in TABLES.items():
        if kind in ("all", name):
            stdout.print(make())


def show(
    name: Annotated[str, typer.Argument(help="A method or a task: a name, or the path of a YAML file.")],
    as_json: Annotated[bool, flag("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Explain a task, or a method: its components, parameters, losslessness, needs, presets and commands."""
    found = find_help(name)
    if as_json:
        stdout.out(found.model_dump_json(indent=2))
        return
    stdout.out(method_text(found) if isinstance(found, MethodHelp) else task_text(found))


def validate(files: Annotated[list[Path], typer.Argument(help="Task, method or suite YAML files.")]) -> None:
    """Check task, method and suite files and print the problems of each; exit code 2 if there are any."""
    from specbench.publish.cells import is_suite, load_suite
    from specbench.specs.catalogue import load_file, namesake

    num_wrong = 0
    for file in files:
        try:
            if is_suite(file):
                stdout.print(f"ok: {file} (suite {load_suite(str(file)).name})", soft_wrap=True)
                continue
            spec = load_file(file)
            check_code(file, spec)
        except ConfigError as error:
            num_wrong += 1
            fail(error)
        else:
            kind = "methods" if isinstance(spec, MethodSpec) else "tasks"
            stdout.print(f"ok: {file} ({type(spec).__name__.removesuffix('Spec').lower()} {spec.name})", soft_wrap=True)
            if line := namesake(kind, str(file)):
                stdout.print(line, soft_wrap=True, markup=False)
    if num_wrong:
        raise typer.Exit(2)


def check_code(file: Path, spec: TaskSpec | MethodSpec) -> None:
    """Raises ConfigError if the code of an external decoder cannot be loaded."""
    if not isinstance(spec, MethodSpec) or spec.decoder is None:
        return
    from specbench.integrations.entry import load

    try:
        load(spec.decoder.entry)
    except ConfigError as error:
        raise ConfigError(f"{file}: decoder.entry: {error}") from error


@takes_run_options(only=("subsets", "overrides"), subsets="Subsets, separated by commas; all when absent.")
def fetch(
    task: Annotated[str, typer.Option(help="Task names or YAML files, separated by commas.")],
    split: Annotated[str | None, typer.Option(help="Another split than the task's own.")] = None,
    *,
    options: RunOptions,
) -> None:
    """Download the files of tasks from the hub, so that a later run needs no connection."""
    from specbench.tasks.fetch import fetch_tasks

    overrides = [*options.overrides, *([f"dataset.split={split}"] if split is not None else [])]
    for line in fetch_tasks(parts(task), options.subsets, overrides, stderr):
        stdout.print(line, soft_wrap=True, markup=False, highlight=False)
