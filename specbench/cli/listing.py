"""Tables of what can be run and what is measured: tasks, methods, metrics."""

from rich import box
from rich.table import Column, Table
from rich.text import Text

from specbench.cli.help.method import verdict
from specbench.core.registry import BRIDGES, DRAFTERS, RULES, SCORERS
from specbench.results.units import MEANINGS
from specbench.specs.catalogue import load_method, load_task, method_names, task_names
from specbench.specs.method import MethodSpec

WIDTHS = {"paper": len("arXiv:2211.17192"), "subsets": len("high_school_geography")}


def tasks_table() -> Table:
    """name, title, paper, subsets, score; `*` at the name of one without a bundled sample."""
    table = _table("tasks (* needs --data or the hub)", "name", "title", "paper", "subsets", "score")
    for task in map(load_task, task_names()):
        name = task.name if task.has_sample else f"{task.name} *"
        scorers = dict.fromkeys(one.type for name in task.subset_names if (one := task.subset(name).scorer))
        scorer = " ".join(scorers) or "–"
        add_row(table, name, task.title, task.paper or "–", " ".join(task.subset_names), scorer)
    return table


def methods_table() -> Table:
    """name, title, paper, lossless, needs."""
    table = _table("methods", "name", "title", "paper", "lossless", "needs")
    for method in map(load_method, method_names()):
        lossless = verdict(method)[0]
        add_row(table, method.name, method.title, method.paper or "–", lossless, needs(method))
    return table


def parts_table() -> Table:
    """part, name, options: what a YAML file may name as drafter, rule, bridge and scorer."""
    table = _table("parts of methods and tasks", "part", "name", "options and their defaults")
    for registry in (DRAFTERS, RULES, BRIDGES, SCORERS):
        for name in registry.names():
            fields = registry.options_model(name).model_fields.items()
            options = ", ".join(key if field.is_required() else f"{key}: {field.default}" for key, field in fields)
            add_row(table, registry.kind, name, options or "–")
    return table


def metrics_table() -> Table:
    """name, unit, meaning."""
    table = _table("metrics of a leaderboard row", "name", "unit", "meaning")
    for name, (unit, meaning) in MEANINGS.items():
        add_row(table, name, unit, meaning)
    return table


def _table(title: str, *headers: str) -> Table:
    """Nothing is cut: names and numbers of papers stand in one line, to be copied, and other long words fold."""
    columns = [
        Column(header, overflow="fold", no_wrap=header == "name", min_width=WIDTHS.get(header)) for header in headers
    ]
    return Table(*columns, title=title, box=box.SIMPLE_HEAD, pad_edge=False)


def add_row(table: Table, *cells: str) -> None:
    """A line of cells as they are: what looks like markup is a user's own text."""
    table.add_row(*map(Text, cells))


def needs(method: MethodSpec) -> str:
    """What must be given besides a target."""
    if not method.needs_drafter:
        return "target"
    own = all(part.checkpoint for part in method.parts if part.needs_drafter)
    return ("target, its own drafter" if own else "target, drafter") + " with its vocabulary" * method.same_vocabulary
