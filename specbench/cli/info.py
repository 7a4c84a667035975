"""`specbench list`, `validate`, `fetch` and `new`."""

import keyword
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from specbench.cli.arguments import names_in, takes_run_options
from specbench.cli.arguments import split as split_names
from specbench.cli.help.method import other_needs, verdict
from specbench.cli.help.text import shown
from specbench.core.console import fail, stderr, stdout
from specbench.core.environment import is_installed
from specbench.core.errors import ConfigError, nearest
from specbench.core.files import writing
from specbench.core.registry import BRIDGES, DRAFT_LENGTHS, DRAFTERS, RULES, SCORERS
from specbench.core.table import RULE, Column, Table, in_sections
from specbench.specs.catalogue import load_method, load_task, method_families, task_names
from specbench.specs.method import MethodSpec
from specbench.specs.run_options import RunOptions

MOST_SUBSETS = 3  # printed per task; `specbench list tasks NAME` prints all


def columns(*headings: str) -> list[Column]:
    """Returns text columns. Names are not wrapped, so that they can be copied."""
    return [Column(heading, folds=heading != "name") for heading in headings]


def tasks_table() -> Table:
    """Returns a table of the tasks. `*` marks tasks without a bundled sample."""
    rows = []
    for task in map(load_task, task_names()):
        scorers = dict.fromkeys(scorer.type for name in task.subset_names if (scorer := task.subset(name).scorer))
        name = task.name if task.has_sample else f"{task.name} *"
        names = task.subset_names
        subsets = " ".join(names) if len(names) <= MOST_SUBSETS else f"{len(names)} subsets"
        rows.append([name, task.title, task.paper or "–", subsets, " ".join(scorers) or "–"])
    return Table("tasks (* needs --data or the hub)", columns("name", "title", "paper", "subsets", "score"), rows)


def methods_table() -> Table:
    """Returns a table of the methods, with a section for each family."""
    families, rows = method_families(), list[Sequence[str]]()
    width = max(len(name) for names in families.values() for name in names)  # a heading stands in the column of names
    for family, names in families.items():
        rows += [RULE, *([line] for line in wrap(family, width))]
        for each in map(load_method, names):
            rows.append([each.name, each.title, each.paper or "–", verdict(each)[0], needs(each)])
    headings = columns("name", "title", "paper", "lossless", "needs")
    return Table("methods by what their drafts come from", headings, rows[1:])


def components_table() -> Table:
    rows, broken = [], []
    for registry in (DRAFTERS, DRAFT_LENGTHS, RULES, BRIDGES, SCORERS):
        for name in registry.names():
            try:
                fields = registry.options_model(name).model_fields.items()
            except ConfigError as error:  # a broken plug-in hides no other component
                rows.append([registry.kind, name, f"broken: {error}"])
                broken.append(name)
                continue
            options = ", ".join(
                key if field.is_required() else f"{key}: {shown(field.get_default(call_default_factory=True))}"
                for key, field in fields
            )
            rows.append([registry.kind, name, options or "–"])
    headings = columns("component", "name", "options and their defaults")
    note = [f"broken plug-ins, which no method can use: {', '.join(broken)}"] if broken else []
    return Table("components of methods and tasks", headings, rows, note, num_keys=2)


def metrics_table() -> Table:
    from specbench.results.metric_format import all_metrics  # imports scipy, which the other tables do not need

    rows = [[each.name, each.unit, each.explanation] for each in all_metrics().values()]
    return Table("metrics of a leaderboard row", columns("name", "unit", "meaning"), rows)


def subsets_table(name: str) -> Table:
    """Returns a table of a task's subsets. `*` marks subsets without a bundled sample."""
    task = load_task(name)
    rows = []
    absent = [subset_name for subset_name in task.subset_names if not task.sample_of(subset_name)]
    for subset_name in task.subset_names:
        subset = task.subset(subset_name)
        marked = f"{subset_name} *" if subset_name in absent else subset_name
        rows.append([marked, subset.language or "–", subset.scorer.type if subset.scorer else "–"])
    note = ["* needs --data or the hub"] if absent else []
    caption = [task.title or "", *note, f"`specbench show {task.name}` explains it"]
    return Table(task.name, columns("name", "language", "score"), rows, caption)


def overview_table() -> Table:
    """Returns a table of the tasks by score and the methods by where their drafts come from."""
    families = {("methods", family): names for family, names in method_families().items()}
    for task in map(load_task, task_names()):
        scorers = {scorer.type for name in task.subset_names if (scorer := task.subset(name).scorer)}
        family = scorers.pop() if len(scorers) == 1 else "several scores" if scorers else "no score"
        families.setdefault(("tasks", family), []).append(task.name)
    ordered = sorted(families.items(), key=lambda item: (list(TABLES).index(item[0][0]), -len(item[1])))
    rows = [[kind, family, " ".join(names)] for (kind, family), names in ordered]
    caption = [
        "`specbench list tasks`, `methods`, `components` or `metrics`: one line each; `list tasks mmlu`: its subsets",
        "`specbench show NAME` explains a task, a method with its needs, or a component",
    ]
    headings = (*columns("kind"), Column("score, or drafts of"), *columns("names"))
    return Table("tasks and methods", headings, in_sections(rows), caption)


TABLES: Mapping[str, Callable[[], Table]] = {
    "tasks": tasks_table, "methods": methods_table, "components": components_table, "metrics": metrics_table
}  # fmt: skip


def needs(method: MethodSpec) -> str:
    """Returns the models that a method needs, and the other needs of its drafters without instructions."""
    models = ["target"]
    if method.needs_drafter:
        is_named = all(part.checkpoint for part in method.parts if part.needs_drafter)
        models.append(("its own drafter" if is_named else "drafter") + " with its vocabulary" * method.same_vocabulary)
    return ", ".join([*models, *(text.partition(" (")[0] for text in other_needs(method))])


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="tasks, methods, components or metrics; by default the names of tasks and methods."),
    ] = None,
    task: Annotated[str | None, typer.Argument(help="After `tasks`: list this task's subsets.")] = None,
) -> None:
    """List tasks, methods and components, built-in or from plug-ins, and the meaning of metrics."""
    if kind is None:
        stdout.print(overview_table())
        return
    if kind not in TABLES:
        raise ConfigError(f"specbench list {kind}: unknown kind '{kind}': {nearest(kind, TABLES)}")
    if task is not None and kind != "tasks":
        raise ConfigError(f"specbench list {kind} {task}: only tasks have subsets to list: see `specbench show {task}`")
    stdout.print(TABLES[kind]() if task is None else subsets_table(task))


def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML files of tasks, methods, suites or servers.")],
) -> None:
    """Check files of tasks, methods, suites and servers, and print their problems. Exit code 2 if there are any."""
    from specbench.publish.suite_runs import is_suite, load_suite
    from specbench.specs.catalogue import load_file, namesake
    from specbench.specs.run import is_servers, read_servers

    num_wrong = 0
    for file in files:
        try:
            if is_suite(file):
                stdout.print(f"ok: {file} (suite {load_suite(str(file)).name})", soft_wrap=True)
                continue
            if is_servers(file):
                stdout.print(f"ok: {file} (servers {', '.join(read_servers(file).servers)})", soft_wrap=True)
                continue
            spec = load_file(file)
            if isinstance(spec, MethodSpec):
                check_method(file, spec)
        except ConfigError as error:
            num_wrong += 1
            for problem in (str(error), *error.others):
                fail(ConfigError(problem))
        else:
            kind = "method" if isinstance(spec, MethodSpec) else "task"
            stdout.print(f"ok: {file} ({kind} {spec.name})", soft_wrap=True)
            if line := namesake(f"{kind}s", str(file)):
                stdout.print(line, soft_wrap=True, markup=False)
    if num_wrong:
        raise typer.Exit(2)


def check_method(file: Path, method: MethodSpec) -> None:
    """Raises ConfigError if every run of a method would be refused: its external code cannot be loaded, or its rule
    needs the distributions of a greedy drafter."""
    from specbench.decoding.build import check_sampling, make_rule
    from specbench.decoding.sampling import Sampling
    from specbench.integrations.external import load_entry

    for part in method.parts:
        place = file if part.decoder is None else f"{file}: decoder.entry"
        try:
            if part.decoder is not None:
                load_entry(part.decoder.entry)
            else:
                drafts = Sampling(1.0).at(part.drafter.options.get("temperature"))
                check_sampling(part, make_rule(part, 1), Sampling(1.0), drafts)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error


@takes_run_options(only=("subsets", "overrides"), subsets="Subsets, separated by commas; by default all.")
def fetch(
    task: Annotated[
        str | None,
        typer.Option(help="Task names or YAML files, separated by commas.", autocompletion=names_in("tasks")),
    ] = None,
    split: Annotated[str | None, typer.Option(help="A split other than the task's.")] = None,
    check: Annotated[
        str | None, typer.Option(help="Tasks, or all: only read their first rows, without a download.")
    ] = None,
    *,
    options: RunOptions,
) -> None:
    """Download the files of tasks from the hub, so that a later run needs no connection.

    With --check, print the state of every location: there, gated, moved, not there, script only, other columns or
    unreadable. Exit code 1 if any location is in one of the last five states.
    """
    overrides = [*options.overrides, *([f"dataset.split={split}"] if split is not None else [])]
    if (task is None) == (check is None):
        raise ConfigError("fetch: give either --task with tasks to download, or --check with tasks (or all) to check")
    if task is not None:
        from specbench.tasks.fetch import fetch_tasks

        for line in fetch_tasks(split_names(task), options.subsets, overrides, stderr):
            stdout.print(line, soft_wrap=True, markup=False, highlight=False)
        return
    from specbench.tasks.fetch import FINE, check_locations

    states: Counter[str] = Counter()
    for location in check_locations(split_names(check or ""), options.subsets, overrides):
        states[location.state] += 1
        stdout.print(str(location), soft_wrap=True, markup=False, highlight=False)
    stdout.print(", ".join(f"{num} {state}" for state, num in states.most_common()), highlight=False)
    if not set(states) <= set(FINE):
        raise typer.Exit(1)


SKELETONS = Path(__file__).parent / "skeletons"
# The command that runs the skeleton of a kind. {name} is the given name.
NEXT = {
    "task": "specbench run --task {name}.yaml --method sd",
    "method": "specbench run --task mgsm --method {name}.yaml --subset en --limit 2",
    "plugin": "pip install -e {name} && "
    "specbench run --task {name}-task --method {name}-drafter,{name}-rule,{name}-engine",
}
NAMES = {"task": r"[A-Za-z0-9][A-Za-z0-9_.-]*", "method": r"[A-Za-z0-9][A-Za-z0-9_.-]*", "plugin": r"[a-z][a-z0-9_-]*"}


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="task, method or plugin.")],
    name: Annotated[str, typer.Argument(help="Its name, also used for the files in the current folder.")],
) -> None:
    """Write the skeleton of a task, a method or a plug-in into the current folder. Existing files are never replaced.

    The skeleton runs as it is: a task with two rows, a fuzzy method, or a package with a drafter, a verification rule,
    a scorer, an engine, and methods and a task that use them.
    """
    for path in write_skeleton(kind, name, Path()):
        stdout.print(path, soft_wrap=True)
    stdout.print(f"next: {NEXT[kind].format(name=name)}", soft_wrap=True)


def write_skeleton(kind: str, name: str, folder: Path) -> list[Path]:
    """Writes the files of a skeleton below a folder and returns their paths. Raises ConfigError for an unknown kind, an
    unsuitable name, an existing file or folder, and a plug-in named like an installed module."""
    if kind not in NEXT:
        raise ConfigError(f"specbench new {kind}: unknown kind '{kind}': {nearest(kind, NEXT)}")
    is_plugin = kind == "plugin"
    module = name.replace("-", "_")
    if not re.fullmatch(NAMES[kind], name) or (is_plugin and keyword.iskeyword(module)):
        letters = "lowercase letters, digits, - and _" if is_plugin else "letters, digits, -, _ and ."
        raise ConfigError(f"specbench new {kind} {name}: not a valid name: use {letters}, beginning with a letter")

    def named(text: str) -> str:
        return text.replace(f"my-{kind}", name).replace(f"my_{kind}", module)

    source, target = SKELETONS / kind, folder / name if is_plugin else folder
    files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    written = {target / named(path.relative_to(source).as_posix()): named(path.read_text("utf-8")) for path in files}
    for path in [target] if is_plugin else written:
        if path.exists():
            raise ConfigError(f"{path}: already exists: choose another name, or remove it")
    if is_plugin and is_installed(module):
        raise ConfigError(
            f"specbench new plugin {name}: a Python module '{module}' already exists: choose another name"
        )
    for path, text in written.items():
        with writing(path, "choose another folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return list(written)
