"""Tables of what can be run and what is measured: tasks, methods, metrics."""

from rich.table import Table
from rich.text import Text

from specbench.catalogue import load_method, load_task, method_names, task_names
from specbench.help.method import verdict
from specbench.registry import BRIDGES, DRAFTERS, RULES, SCORERS
from specbench.results.glossary import MEANINGS
from specbench.specs import MethodSpec


def tasks_table() -> Table:
    """name, title, paper, subsets, scorer, needs."""
    table = Table("name", "title", "paper", "subsets", "score", "needs", title="tasks")
    for task in map(load_task, task_names()):
        needs = "nothing (bundled sample)" if task.has_sample else "data"
        scorers = dict.fromkeys(one.type for name in task.subset_names if (one := task.subset(name).scorer))
        scorer = " ".join(scorers) or "–"
        add_row(table, task.name, task.title, task.paper or "–", " ".join(task.subset_names), scorer, needs)
    return table


def methods_table() -> Table:
    """name, title, paper, lossless, needs."""
    table = Table("name", "title", "paper", "lossless", "needs", title="methods")
    for method in map(load_method, method_names()):
        lossless = verdict(method)[0]
        add_row(table, method.name, method.title, method.paper or "–", lossless, needs(method))
    return table


def parts_table() -> Table:
    """part, name, options: what a YAML file may name as drafter, rule, bridge and scorer."""
    table = Table("part", "name", "options and their defaults", title="parts of methods and tasks")
    for registry in (DRAFTERS, RULES, BRIDGES, SCORERS):
        for name in registry.names():
            fields = registry.options_model(name).model_fields.items()
            options = ", ".join(key if field.is_required() else f"{key}: {field.default}" for key, field in fields)
            add_row(table, registry.kind, name, options or "–")
    return table


def metrics_table() -> Table:
    """name, unit, meaning."""
    table = Table("name", "unit", "meaning", title="metrics of a leaderboard row")
    for name, (unit, meaning) in MEANINGS.items():
        add_row(table, name, unit, meaning)
    return table


def add_row(table: Table, *cells: str) -> None:
    """A line of cells as they are: what looks like markup is a user's own text."""
    table.add_row(*map(Text, cells))


def needs(method: MethodSpec) -> str:
    """What must be given besides a target."""
    if not method.needs_drafter:
        return "target"
    own = all(part.checkpoint for part in method.parts if part.needs_drafter)
    return ("target, its own drafter" if own else "target, drafter") + " with its vocabulary" * method.same_vocabulary
