"""Tables of tasks, methods, components and metrics for `specbench list`."""

from collections.abc import Callable, Mapping

from specbench.cli.help.method import verdict
from specbench.core.registry import BRIDGES, DRAFTERS, RULES, SCORERS
from specbench.core.table import Column, Table
from specbench.specs.catalogue import load_method, load_task, method_names, task_names
from specbench.specs.method import MethodSpec

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


def parts_table() -> Table:
    """Returns a table of all drafters, verification rules, vocabulary bridges and scorers."""
    rows = []
    for registry in (DRAFTERS, RULES, BRIDGES, SCORERS):
        for name in registry.names():
            fields = registry.options_model(name).model_fields.items()
            options = ", ".join(key if field.is_required() else f"{key}: {field.default}" for key, field in fields)
            rows.append([registry.kind, name, options or "–"])
    return Table("parts of methods and tasks", columns("part", "name", "options and their defaults"), rows)


def metrics_table() -> Table:
    """Returns a table of the metrics of a row."""
    from specbench.results.glossary import MEANINGS  # imports scipy, which the other tables do not need

    rows = [[name, unit, meaning] for name, (unit, meaning) in MEANINGS.items()]
    return Table("metrics of a leaderboard row", columns("name", "unit", "meaning"), rows)


TABLES: Mapping[str, Callable[[], Table]] = {
    "tasks": tasks_table, "methods": methods_table, "parts": parts_table, "metrics": metrics_table
}  # fmt: skip


def needs(method: MethodSpec) -> str:
    """Returns the models that a method needs."""
    if not method.needs_drafter:
        return "target"
    own = all(part.checkpoint for part in method.parts if part.needs_drafter)
    return ("target, its own drafter" if own else "target, drafter") + " with its vocabulary" * method.same_vocabulary
