"""`specbench site`."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import path
from specbench.core.console import stderr, stdout


def site(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Board files: leaderboard JSON.")],
    out: Annotated[str, typer.Option(help="Folder of the site: absent, empty, or an earlier site, which is replaced.")],
    title: Annotated[str, typer.Option(help="Title of its pages.")] = "specbench leaderboard",
) -> None:
    """Make static pages of leaderboards: sortable tables, a page for each row, pictures of quality and speed.

    They need no server and no network; the view of a table is in its address, so that it can be linked.

    A row's page has its command, provenance, languages, accepted lengths, times and warnings.

    Pictures: quality and speed with the Pareto front (a sweep is a curve); predicted beside measured speed-ups.

    The same files give the same pages.
    """
    from specbench.publish.site.build import build

    folder = path("--out", out)
    assert folder is not None
    with stderr.status("building the site"):
        built = build(files, folder, title)
    for line in built.warnings:
        stderr.print(f"warning: {line}", soft_wrap=True)
    rows = "1 row" if built.num_rows == 1 else f"{built.num_rows} rows"
    stdout.print(f"{folder / 'index.html'}: {rows}, {built.num_files} files", soft_wrap=True)
