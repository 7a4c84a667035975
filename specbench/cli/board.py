"""`specbench board`: suites with the published figures of a paper, and repositories to which others submit bundles."""

import json
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import AsJson, path_option, split
from specbench.cli.publish import Name, Runs, suite
from specbench.core.console import counted, fail, stdout
from specbench.core.errors import ConfigError
from specbench.core.progress import status_line

board = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
board.command("run")(suite)


@board.callback()
def about() -> None:
    """Boards of a paper: suites beside its published figures (run, list, show).

    Boards of your own: repositories to which others submit bundles (init, check, merge, rerun).
    """


@board.command("list")
def list_() -> None:
    """List the boards."""
    from specbench.publish.tables import boards_table

    stdout.print(boards_table())


@board.command("show")
def show_board(
    name: Name,
    pair: Annotated[str | None, typer.Option(help="Pair of the board whose published figures are all printed.")] = None,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Print what the pairs of a board need, what is measured, and the published figures next to the measured ones.

    Without --pair, published tables without measured results are only listed.

    Measured rows are from `board run`, or from a .json file next to the board's YAML.

    Lines below the table list rows that were measured with options or versions other than the board now requires.
    """
    from rich.text import Text

    from specbench.publish.measured import as_records, measured_pairs
    from specbench.publish.tables import nothing_measured, pair_table, pairs_table, published_tables

    all_pairs = measured_pairs(name, pair, runs)
    shown_pairs = [rows for rows in all_pairs if rows.measured] or all_pairs[:1]
    if as_json:
        records = [record for rows in shown_pairs for record in as_records(rows)]
        stdout.out(json.dumps(records, ensure_ascii=False, indent=2))
        return
    if pair is None:
        stdout.print(pairs_table(name, all_pairs))
    for rows in shown_pairs:
        if rows.measured:
            stdout.print(pair_table(rows))
        elif pair is not None:
            stdout.print(nothing_measured(rows, name), soft_wrap=True)
        for part in published_tables(rows, measured_only=pair is None):
            stdout.print(part, soft_wrap=isinstance(part, Text))


MOST_PROBLEMS = 50  # printed
Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Board repository; by default the current folder.")]


@board.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the repository: new, or with nothing but .git.")],
    title: Annotated[str, typer.Option(help="Title of the board.")] = "Speculative decoding",
    address: Annotated[str | None, typer.Option(help="Address that others clone, which RULES.md prints.")] = None,
    task: Annotated[str | None, typer.Option(help="Tasks of the board, separated by commas; by default any.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Targets of the board, separated by commas; by default any.")
    ] = None,
    install: Annotated[
        str | None, typer.Option(help="What pip installs in the workflow; by default this version of specbench.")
    ] = None,
) -> None:
    """Write a board repository: board.yaml, its rules, a workflow that checks and publishes, and an empty board.

    board.yaml has a comment on every key: tasks, targets, conditions, oldest versions, licences, signatures.
    """
    from specbench.publish.board.init import init_board

    for name in init_board(folder, title, address, split(task or ""), split(target or ""), install):
        stdout.print(folder / name, soft_wrap=True)
    stdout.print(f"next: edit {folder / 'board.yaml'}, then specbench board merge {folder}", soft_wrap=True)


@board.command("check")
def check_board(
    folder: Folder = Path(),
    base: Annotated[
        str | None,
        typer.Option(help="The board without the submission: a git revision, or a folder; by default an empty board."),
    ] = None,
    markdown: Annotated[Path | None, path_option(help="File for the report as Markdown.")] = None,
) -> None:
    """Check what a submission adds to a board; exit code 2 if it is refused.

    Its bundles are verified, and their rows are listed beside the board's of the same target, task and method.

    Refused: other changes than new bundles, copies of runs, rows that board.yaml does not take, rows that mislead.

    No code of the submission runs. The rules are those of the board without it.
    """
    from specbench.core.files import check_output, write_output
    from specbench.publish.board.check import check_submission

    if markdown is not None:
        check_output("--markdown", markdown)
    with status_line("checking"):
        found = check_submission(folder, base)
    if markdown is not None:
        write_output("--markdown", markdown, found.markdown())
    if found.table is not None:
        stdout.print(found.table)
    for line in found.marks:
        stdout.print(f"marked: {line}", soft_wrap=True)
    for line in found.problems[:MOST_PROBLEMS]:
        fail(ConfigError(line))
    if len(found.problems) > MOST_PROBLEMS:
        fail(ConfigError(f"and {counted(len(found.problems) - MOST_PROBLEMS, 'more problem')}"))
    if found.problems:
        raise typer.Exit(2)
    stdout.print(f"ok: {folder} ({found})", soft_wrap=True)


@board.command("merge")
def merge_board(folder: Folder = Path()) -> None:
    """Make everything that a board shows from its bundles: leaderboards, BOARD.md, RULES.md and the site.

    Nothing is written if a bundle has a problem. The same bundles give the same bytes.

    Of several runs of one configuration on one machine the first one stands, and the others confirm it or not.
    """
    from specbench.publish.board import merge

    try:
        with status_line("verifying all bundles"):
            made = merge.merge_board(folder)
    except ConfigError as error:
        for line in (str(error), *error.others[: MOST_PROBLEMS - 1]):
            fail(ConfigError(line))
        raise typer.Exit(2) from error
    for line in made.left_out:
        stdout.print(f"left out: {line}", soft_wrap=True)
    stdout.print(f"{folder / merge.PAGE}: {made}", soft_wrap=True)
    if made.site is not None:
        stdout.print(f"{folder / merge.SITE / 'index.html'}: {counted(made.site.num_files, 'file')}", soft_wrap=True)


@board.command()
def rerun(
    row: Annotated[str, typer.Argument(metavar="ROW", help="First digits of a row, as BOARD.md has them.")],
    board_folder: Annotated[
        Path, typer.Option("--board", help="Board repository; by default the current folder.")
    ] = Path(),
    with_: Annotated[
        Path | None, path_option("--with", help="Folder of your run, or a bundle of it, which is put into the board.")
    ] = None,
    specs: Annotated[
        Path | None,
        path_option(help="Folder for the YAML files of a task or method that is not built in, from the bundle."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="With --with: name of the bundle; by default rerun-ROW-1.")] = None,
    author: Annotated[
        list[str] | None, typer.Option(help="With --with: name, or NAME <ORCID>; may be repeated.")
    ] = None,
    license_: Annotated[
        str | None,
        typer.Option("--license", help="With --with RUN: licence of the bundle; by default the board's first."),
    ] = None,
) -> None:
    """Print the commands that measure a row again, or put a run of them into the board.

    With --with, the run is compared with the row: greedy answers up to near-ties and widths of passes, speed-up and τ
    paired by prompt with E_n. It is filed whether it agrees or not; a copy or another configuration is refused.
    """
    from specbench.publish.board import rerun as reruns
    from specbench.publish.bundle.crate import About, Author

    with status_line("verifying"):
        found = reruns.find_row(board_folder, row)
        if with_ is None:
            lines = reruns.rerun_lines(board_folder, found, specs)
        else:
            about = About(f"Re-run of {found.row.place}", [Author.of(text) for text in author or ()], license_)
            filed = reruns.file_rerun(board_folder, found, with_, about, name)
    if with_ is None:
        for line in lines:
            stdout.print(line, soft_wrap=True)
        return
    if filed.table is not None:
        stdout.print(filed.table)
    agrees = "agrees with" if filed.agreement.agrees else "differs from"
    stdout.print(f"{filed.file}: {agrees} {found.row.place} of {found.bundle.name}", soft_wrap=True)
    sign = f"specbench bundle sign {filed.file} --key KEY"
    stdout.print(f"next: {sign}; specbench board check {board_folder} --base origin/main", soft_wrap=True)
