"""`specbench show`."""

from typing import Annotated

import typer

from specbench.commands.arguments import flag
from specbench.console import stdout


def show(
    name: Annotated[str, typer.Argument(help="A method or a task: a name, or the path of a YAML file.")],
    as_json: Annotated[bool, flag("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Explain a method: its parts, parameters and ranges, lossless or not, needs, presets, how to run it; or a task."""
    from specbench.help.find import find_help
    from specbench.help.method import MethodHelp
    from specbench.help.text import method_text, task_text

    found = find_help(name)
    if as_json:
        stdout.out(found.model_dump_json(indent=2))
        return
    stdout.out(method_text(found) if isinstance(found, MethodHelp) else task_text(found))
