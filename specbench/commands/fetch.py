"""`specbench fetch`."""

from typing import Annotated

import typer

from specbench.commands import arguments
from specbench.commands.arguments import split as parts
from specbench.console import stderr, stdout


def fetch(
    task: Annotated[str, typer.Option(help="Task names or YAML files, separated by commas.")],
    subset: Annotated[str | None, typer.Option(help="Subsets, separated by commas; all when absent.")] = None,
    split: Annotated[str | None, typer.Option(help="Another split than the task's own.")] = None,
    set_: arguments.Overrides = None,
) -> None:
    """Download the files of tasks from the hub ahead of a run, which then reads them also without a connection."""
    from specbench.fetching import fetch_tasks

    overrides = [*(set_ or []), *([f"dataset.split={split}"] if split is not None else [])]
    for line in fetch_tasks(parts(task), parts(subset) if subset is not None else None, overrides, stderr):
        stdout.print(line, soft_wrap=True, markup=False, highlight=False)
