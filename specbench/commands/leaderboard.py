"""`specbench leaderboard`: board files that are kept and published."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.commands.arguments import flag, path, split
from specbench.console import fail, stderr, stdout
from specbench.errors import ConfigError

leaderboard = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Board files: leaderboard JSON.")]


@leaderboard.callback()
def about() -> None:
    """Keep, check, join and show leaderboard files."""


@leaderboard.command()
def add(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    to: Annotated[str, typer.Option(help="Board file; it is made where there is none.")],
) -> None:
    """Put the rows of runs into a board file, with the place of their records; several may do so at once.

    A row of the same configuration is replaced.

    A file holds rows of one machine and one set of versions: others are refused, with both values.
    """
    from specbench.leaderboards.adding import add_runs

    file = path("--to", to)
    assert file is not None
    stdout.print(f"{file}: {add_runs(runs, file)}", soft_wrap=True)


@leaderboard.command()
def merge(
    files: Files, to: Annotated[str, typer.Option(help="File that takes the rows of all: a new one, or one of them.")]
) -> None:
    """Join board files; what does not go together is refused, with both values.

    An audit's verdict that only one of the files has is kept.
    """
    from specbench.leaderboards.adding import merge_files

    file = path("--to", to)
    assert file is not None
    stdout.print(f"{file}: {merge_files(files, file)}", soft_wrap=True)


@leaderboard.command()
def validate(
    files: Files,
    records: Annotated[bool, flag("--records", help="Compute every row again from the folder of its run.")] = False,
    run: Annotated[
        list[Path] | None, typer.Option(help="Folder of a run whose rows do not say where it is; several times.")
    ] = None,
) -> None:
    """Say whether board files are whole, unedited, of one machine and set of versions; exit code 2 if one is not.

    Each row has a digest, which protects against slips and not against forgery.

    --records makes every row again from the folder of its run and compares all of it, metrics to the last digit; what
    was added later and cannot be made again (an audit without its report, numbers of fairness) is named as stated.
    """
    from specbench.leaderboards.validation import validate as validated

    if run and not records:
        raise ConfigError(f"--run {run[0]}: has no effect without --records: add it, or leave this out")
    wrong = False
    for file in files:
        with stderr.status(f"checking {file}"):
            found = validated(file, records, run or [])
        for problem in found.problems:
            fail(ConfigError(problem))
        wrong |= bool(found.problems)
        if not found.problems:
            stdout.print(f"ok: {file} ({found})", soft_wrap=True)
    if wrong:
        raise typer.Exit(2)


@leaderboard.command()
def show(
    files: Files,
    sort: Annotated[str, typer.Option(help="Metric that ranks the rows.")] = "speedup",
    filter_: Annotated[
        list[str] | None, typer.Option("--filter", help="KEY=VALUE that rows must have: method=sd")
    ] = None,
    subset: Annotated[
        str | None, typer.Option(help="Subsets, separated by commas; the rows over all when absent.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text, markdown, or latex for a paper.")] = "text",
) -> None:
    """Print ranked tables: rows that compare share one, and ranks say what their intervals cannot tell apart.

    A rank like 2–3: the paired intervals cannot tell the row from its neighbours.

    The intervals of all pairs of a table are widened together (Bonferroni): 5 % of tables of equals rank any.
    """
    from specbench.leaderboards.show import show as shown

    with stderr.status("reading the records"):
        found = shown(files, sort, filter_ or [], split(subset or ""), format_)
    for each in found:
        stdout.print(each, soft_wrap=isinstance(each, str))
