"""`specbench list`."""

from typing import Annotated

import typer

from specbench.console import stdout
from specbench.errors import ConfigError, nearest


def list_(
    kind: Annotated[str, typer.Argument(help="tasks, methods, parts or metrics; all when absent.")] = "all",
) -> None:
    """List the tasks, methods and their parts (built in or from plug-ins), and what the metrics mean."""
    from specbench.listing import methods_table, metrics_table, parts_table, tasks_table

    tables = {"tasks": tasks_table, "methods": methods_table, "parts": parts_table, "metrics": metrics_table}
    if kind != "all" and kind not in tables:
        raise ConfigError(f"specbench list {kind}: unknown kind '{kind}': {nearest(kind, tables)}")
    for name, make in tables.items():
        if kind in ("all", name):
            stdout.print(make())
