"""Tables of tasks, methods, components and metrics for `specbench list`."""

from rich import box
from rich.table import Column, Table
from rich.text import Text

from specbench.cli.help.method import verdict
from specbench.core.registry import BRIDGES, DRAFTERS, RULES, SCORERS
from specbench.specs.catalogue import load_method, load_task, method_names, task_names
from specbench.specs.method import MethodSpec

WIDTHS = {"paper": len("arXiv:2211.17192"), "subsets": len("high_school_geography")}


def tasks_table() -> Table:
    """Returns a table of the tasks; `*` marks tasks without a bundled sample."""
    table = _table("tasks (* needs --data or the hub)", "name", "title", "paper", "subsets", "score")
    for task in map(load_task, task_names()):
        name = task.name if task.has_sample else f"{task.name} *"
        scorers = dict.fromkeys(one.type for name in task.subset_names if (one := task.subset(name).scorer))
        scorer = " ".join(scorers) or "–"
        add_row(table, name, task.title, task.paper or "–", " ".join(task.subset_names), scorer)
    return table


def methods_table() -> Table:
    """Returns a table of the methods."""
    table = _table("methods", "name", "title", "paper", "lossless", "needs")
    for method in map(load_method, method_names()):
        lossless = verdict(method)[0]
        add_row(table, method.name, method.title, method.paper or "–", lossless, needs(method))
    return table


def parts_table() -> Table:
    """Returns a table of all drafters, verification rules, vocabulary bridges and scorers."""
    table = _table("parts of methods and tasks", "part", "name", "options and their defaults")
    for registry in (DRAFTERS, RULES, BRIDGES, SCORERS):
        for name in registry.names():
            fields = registry.options_model(name).model_fields.items()
            options = ", ".join(key if field.is_required() else f"{key}: {field.default}" for key, field in fields)
            add_row(table, registry.kind, name, options or "–")
    return table


def metrics_table() -> Table:
    """Returns a table of the metrics of a row."""
    from specbench.results.units import MEANINGS  # imports scipy, which the other tables do not need

    table = _table("metrics of a leaderboard row", "name", "unit", "meaning")
    for name, (unit, meaning) in MEANINGS.items():
        add_row(table, name, unit, meaning)
    return table


def _table(title: str, *headers: str) -> Table:
    """Returns an empty table. Names and papers are not wrapped, so that they can be copied; other long words are."""
    columns = [
        Column(header, overflow="fold", no_wrap=header == "name", min_width=WIDTHS.get(header)) for header in headers
    ]
    return Table(*columns, title=title, box=box.SIMPLE_HEAD, pad_edge=False)


def add_row(table: Table, *cells: str) -> None:
    """Adds a row of cells as plain text, without markup."""
    table.add_row(*map(Text, cells))


def needs(method: MethodSpec) -> str:
    """Returns the models that a method needs."""
    if not method.needs_drafter:
        return "target"
    own = all(part.checkpoint for part in method.parts if part.needs_drafter)
    return ("target, its own drafter" if own else "target, drafter") + " with its vocabulary" * method.same_vocabulary
