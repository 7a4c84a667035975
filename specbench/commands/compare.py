"""`specbench compare`."""

import json
from typing import Annotated

import typer

from specbench.commands.arguments import flag, split
from specbench.console import stderr, stdout

SIDE = "A run or a board file: PATH, PATH:METHOD, or FILE:NUMBER of a row."


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    second: Annotated[str, typer.Argument(metavar="B", help=SIDE)],
    task: Annotated[str | None, typer.Option(help="Tasks, separated by commas; all in common when absent.")] = None,
    subset: Annotated[str | None, typer.Option(help="Subsets, separated by commas; all in common.")] = None,
    filter_: Annotated[
        list[str] | None, typer.Option("--filter", help="KEY=VALUE that rows of both must have: seed=0")
    ] = None,
    as_json: Annotated[bool, flag("--json", help="Print the comparison as JSON instead of tables.")] = False,
) -> None:
    """Put two runs, methods or rows side by side: what differs in their configuration, then paired changes."""
    from specbench.leaderboards.comparison import compare as compared
    from specbench.leaderboards.comparison_tables import tables
    from specbench.leaderboards.named import only, read_side

    sides = [only(read_side(text, filter_ or []), split(task or ""), split(subset or "")) for text in (first, second)]
    with stderr.status("reading the records"):
        found = compared(*sides)
    if as_json:
        stdout.out(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
        return
    for table in tables(found):
        stdout.print(table)
    for line in found.unread:
        stdout.print(line, soft_wrap=True)
