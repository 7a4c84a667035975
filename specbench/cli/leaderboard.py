"""`specbench leaderboard`, `compare` and `check`."""

import json
import os
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import (
    AsJson,
    Bundles,
    Files,
    Format,
    RowSubsets,
    Signers,
    command_line,
    flag,
    levels_in,
    path_option,
    print_result,
    split,
    takes_run_options,
)
from specbench.core.console import fail, stdout
from specbench.core.errors import ConfigError, nearest
from specbench.core.progress import status_line
from specbench.specs.run_options import RunOptions

leaderboard = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
MOST_PROBLEMS = 50  # printed per file


@leaderboard.callback()
def about() -> None:
    """Add to, check, merge and show leaderboard files."""


@leaderboard.command()
def add(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    leaderboard: Annotated[Path, path_option(help="Leaderboard file; created if it does not exist.")],
) -> None:
    """Add the rows of runs, with the paths of their records, to a leaderboard file.

    Several processes may add to a file at the same time.

    A row replaces the file's row of the same configuration. Replaced rows are listed with both speed-ups.

    All rows of a file are from one machine and one set of versions. Other rows are rejected, and both values printed.
    """
    from specbench.results.leaderboard_files import add_runs

    added = add_runs(runs, leaderboard)
    for line in (*added.replaced, f"{leaderboard}: {added}"):
        stdout.print(line, soft_wrap=True)


@leaderboard.command()
def merge(
    files: Files,
    leaderboard: Annotated[Path, path_option(help="File for all rows: a new one, or one of FILE.")],
) -> None:
    """Merge leaderboard files. Incompatible rows are rejected, and both values printed.

    If only one of the files has a row's audit verdict, it is kept.
    """
    from specbench.results.leaderboard_files import merge_files

    stdout.print(f"{leaderboard}: {merge_files(files, leaderboard)}", soft_wrap=True)


@leaderboard.command()
def validate(
    files: Files,
    records: Annotated[bool, flag("--records", help="Recompute every row from its run's folder.")] = False,
    run: Annotated[
        list[Path] | None, typer.Option(help="Folder of a run that its rows do not name; may be repeated.")
    ] = None,
) -> None:
    """Check that leaderboard files are complete, unedited, and of one machine and set of versions; exit code 2 if not.

    Up to 50 problems of a file are printed.

    Each row has a digest, which detects accidental changes but not forgery.

    --records recomputes every row from its run's folder and compares all fields, with numbers to twelve digits.

    Fields that cannot be recomputed (an audit without its report, fairness numbers) are listed as stated.
    """
    from specbench.analysis.audit.report import verdict_in_report
    from specbench.results import leaderboard_files as validation

    if run and not records:
        raise ConfigError(f"--run {run[0]}: has no effect without --records: add --records, or remove --run")
    wrong = False
    for file in files:
        with status_line(f"checking {file}"):
            validity = validation.validate(file, records, run or [], verdict_in_report)
        for problem in validity.problems[:MOST_PROBLEMS]:
            fail(ConfigError(problem))
        if len(validity.problems) > MOST_PROBLEMS:
            fail(ConfigError(f"{file}: and {len(validity.problems) - MOST_PROBLEMS} more problems"))
        wrong |= bool(validity.problems)
        if not validity.problems:
            stdout.print(f"ok: {file} ({validity})", soft_wrap=True)
    if wrong:
        raise typer.Exit(2)


@leaderboard.command()
def show(
    files: Files,
    sort: Annotated[str, typer.Option(help="Metric that ranks the rows.")] = "speedup",
    filter_: Annotated[
        list[str] | None, typer.Option("--filter", help="KEY=VALUE that rows must have: method=sd")
    ] = None,
    subset: RowSubsets = None,
    format_: Format = "text",
    siunitx: Annotated[bool, flag("--siunitx", help="With latex: number columns S of the package siunitx.")] = False,
    wide: Annotated[bool, flag("--wide", help="With latex: tables over both columns of a page (table*).")] = False,
    bundle: Bundles = None,
    signers: Signers = None,
) -> None:
    """Print ranked tables, one per set of conditions. Rows that the intervals cannot separate share ranks.

    A rank such as 2–3 means that the paired intervals cannot separate the row from its neighbours.

    Intervals are corrected for all pairs of a table (Bonferroni): only 5 % of tables with equal rows rank any of them.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for numpy: its products are too small for threads
    from specbench.core.table import TableFormat
    from specbench.report import ranking

    as_text = TableFormat(format_, siunitx=siunitx, wide=wide)
    with status_line("reading the records"):
        levels = levels_in(files, bundle, signers)
        tables = ranking.show(files, sort, filter_ or [], split(subset or ""), as_text, levels)
    for table in tables:
        stdout.print(table, soft_wrap=isinstance(table, str))


REPOSITORY = "Dataset repository on the Hugging Face hub: OWNER/NAME."
IN_REPOSITORY = "Name of the file in the repository"


@leaderboard.command()
def push(
    file: Annotated[Path, typer.Argument(help="Leaderboard file (JSON).")],
    to: Annotated[str, typer.Option(help=f"{REPOSITORY} Created if it does not exist.")],
    name: Annotated[str | None, typer.Option(help=f"{IN_REPOSITORY}; by default that of FILE.")] = None,
    private: Annotated[bool, flag("--private", help="Make a new repository private.")] = False,
) -> None:
    """Add the rows of a leaderboard file to a file in a dataset repository.

    Rows of the same configuration are replaced, as by `leaderboard add`. The paths of records are left out.
    """
    from specbench.results import leaderboard_files

    added, address = leaderboard_files.push(file, to, name or file.name, private)
    for line in (*added.replaced, f"{to}/{name or file.name}: {added}", address):
        stdout.print(line, soft_wrap=True)


@leaderboard.command()
def pull(
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help=REPOSITORY)],
    leaderboard: Annotated[Path, path_option(help="Leaderboard file; created if it does not exist.")],
    name: Annotated[str | None, typer.Option(help=f"{IN_REPOSITORY}; by default that of the local file.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the repository.")] = None,
) -> None:
    """Add the rows of a leaderboard file in a dataset repository to a local file."""
    from specbench.results import leaderboard_files

    added, commit = leaderboard_files.pull(repository, name or leaderboard.name, revision, leaderboard)
    for line in (*added.replaced, f"{leaderboard}: {added}, from commit {commit[:12]}"):
        stdout.print(line, soft_wrap=True)


@leaderboard.command()
def export(
    files: Files,
    output: Annotated[Path, path_option(help="File that ends in .csv or .parquet.")],
    bundle: Bundles = None,
    signers: Signers = None,
) -> None:
    """Write leaderboard files as a table: one line per row, and three columns per metric for value and interval.

    The columns level, signed_by, num_runs and runs_agree are what --bundle shows; without it every row is stated.
    """
    from specbench.core.console import counted
    from specbench.report.display import export as write_table
    from specbench.results.leaderboard import load

    rows = [row for board in files for row in load(board)]
    write_table(rows, output, levels_in(files, bundle, signers))
    stdout.print(f"{output}: {counted(len(rows), 'row')}", soft_wrap=True)


SCHEMAS = {"leaderboard": "specbench.results.leaderboard", "profile": "specbench.records.profile"}


def schema(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="leaderboard or profile.")] = "leaderboard",
) -> None:
    """Print the JSON Schema of leaderboard files or of acceptance profiles, with their format number."""
    if kind not in SCHEMAS:
        raise ConfigError(f"specbench schema {kind}: unknown kind '{kind}': {nearest(kind, SCHEMAS)}")
    stdout.out(json.dumps(import_module(SCHEMAS[kind]).schema(), indent=2, ensure_ascii=False))


SIDE = "The folder of a run, or a leaderboard file: PATH, PATH:METHOD, or FILE:NUMBER of a row."


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    second: Annotated[str, typer.Argument(metavar="B", help=SIDE)],
    task: Annotated[str | None, typer.Option(help="Tasks, separated by commas; by default all that both have.")] = None,
    subset: Annotated[
        str | None, typer.Option(help="Subsets, separated by commas; by default all that both have.")
    ] = None,
    filter_: Annotated[
        list[str] | None, typer.Option("--filter", help="KEY=VALUE that rows of both must have: seed=0")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs, methods or rows: configuration differences, then paired changes of the metrics.

    A method that both paths have is compared with itself. PATH:METHOD compares different methods.

    Intervals show how much the result would change with other prompts of the task; even equal values have one.
    """
    from specbench.report import compare as comparison
    from specbench.results.runs import read_input, select_rows

    tasks, subsets = split(task or ""), split(subset or "")
    inputs = [select_rows(read_input(text, filter_ or []), tasks, subsets) for text in (first, second)]
    with status_line("reading the records"):
        result = comparison.compare(*inputs)
    print_result(result.as_json(), as_json, lambda: comparison.comparison_tables(result))
    for line in result.unread if not as_json else ():
        stdout.print(line, soft_wrap=True)


REGRESSION = "Largest allowed drop in speed-up (default 3%), or with --against in speed (1%), such as 3% or 0.03."
ALLOWED = "3%"
ALLOWED_INTERLEAVED = "1%"
IGNORED = "Conditions that may differ, separated by commas: attention, device, dtype, target, versions."


@takes_run_options(without=("allow_code_execution",))
def check(
    baseline: Annotated[
        str | None, typer.Option(help="Folder of a run, or leaderboard JSON; PATH:METHOD for one method.")
    ] = None,
    candidate: Annotated[
        str | None, typer.Option(help="Folder of the run to check; RUN:METHOD for one method.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Python of an environment with another specbench: measures with both versions."),
    ] = None,
    against_folder: Annotated[
        Path | None,
        path_option(
            help="Working folder of the baseline, such as a checkout of the base branch: relative paths of models, "
            "methods and data then name its own files there; by default the current folder."
        ),
    ] = None,
    max_regression: Annotated[str | None, typer.Option(help=REGRESSION)] = None,
    ignore: Annotated[str | None, typer.Option(help=IGNORED)] = None,
    markdown: Annotated[Path | None, path_option(help="File for the report as Markdown.")] = None,
    junit: Annotated[Path | None, path_option(help="File for the report as JUnit XML.")] = None,
    task: Annotated[str | None, typer.Option(help="With --against: tasks, separated by commas.")] = None,
    method: Annotated[str | None, typer.Option(help="With --against: methods, separated by commas.")] = None,
    *,
    options: RunOptions,
    output: Annotated[
        Path | None,
        path_option(help="With --against: folder of both runs, which are resumed; by default runs/check-…."),
    ] = None,
) -> None:
    """Check whether a run is worse than a baseline. Exit code 0: no, 1: yes, 2: they cannot be compared.

    --against PYTHON measures --task and --method with two versions interleaved and compares the speed of AR and of each
    method.

    The run options, from --subset on, are for --against. --trust-remote-code also helps to recognise near-ties.

    Equal outputs: more passes per token or a smaller τ or α is a regression.

    Equal tokens: another text, finish reason or score is a regression.

    Different outputs, except near-ties, are a regression of a lossless method. For other methods τ is tested like a
    speed-up.

    Speed-ups: a regression if the whole interval of new ÷ old is below 1 − MAX_REGRESSION.

    With a leaderboard file as the baseline, outputs and draft passes are not compared, and intervals are not paired.

    If the file has several rows of a method, the row with the most similar conditions and options is used.
    """
    from specbench.core.files import check_output, write_output
    from specbench.gate import check as gate
    from specbench.gate import report as reports
    from specbench.running.request import Request, check_request

    # 1. Options that do not go together, and files that cannot be written.
    sides, amounts = {"--baseline": baseline, "--candidate": candidate}, {"--task": task, "--method": method}
    if against_folder is not None and (against is None or not against_folder.is_dir()):
        problem = "needs --against" if against is None else "no such folder: give a checkout of the baseline"
        raise ConfigError(f"--against-folder {against_folder}: {problem}")
    if against is None:
        unused = [name for name, value in {**amounts, "--output": output}.items() if value is not None]
        unused += replace(options, trust_remote_code=False).words()
        why = "without --against, since the runs are already measured"
        needed = sides
    else:
        unused = [name for name, value in sides.items() if value is not None]
        why = "with --against, which measures both sides"
        needed = amounts
    if unused:
        raise ConfigError(f"{unused[0]}: has no effect {why}: remove it")
    if missing := [name for name, value in needed.items() if value is None]:
        raise ConfigError(
            f"{missing[0]} is missing: give --baseline and --candidate, or --against with --task and --method to "
            "measure both"
        )
    default = ALLOWED if against is None else ALLOWED_INTERLEAVED
    allowed = share("--max-regression", max_regression or default)
    ignored = split(ignore or "")
    forms = {"--markdown": (markdown, reports.markdown), "--junit": (junit, reports.junit)}
    for option, (file, _) in forms.items():
        if file is not None:
            check_output(option, file)
    # 2. Two runs are compared, or two versions measured interleaved and then compared.
    if against is None:
        with status_line("reading the runs") as say:
            report = gate.check(
                str(baseline), str(candidate), allowed, ignored, say, trust_remote_code=options.trust_remote_code
            )
    else:
        if (interpreter := shutil.which(against)) is None:
            raise ConfigError(
                f"--against {against}: no such program: give the interpreter of an environment with another version of "
                "specbench, such as base/.venv/bin/python"
            )
        request = Request(split(task or ""), split(method or ""), options, command_line(), output)
        check_request(request)
        from specbench.gate.rotation import measure_interleaved  # imports torch

        with status_line("starting both versions") as say:
            runs = measure_interleaved(request, os.path.abspath(interpreter), say, against_folder)
            report = gate.check(
                str(runs.baseline), str(runs.candidate), allowed, {*ignored, "versions"}, say, interleaved=True,
                trust_remote_code=options.trust_remote_code,
            )  # fmt: skip
        report = replace(report, notes=(*runs.notes, *report.notes))
    # 3. The report.
    for option, (file, form) in forms.items():
        if file is not None:
            write_output(option, file, form(report) + "\n")
    for part in reports.screen(report):
        stdout.print(part)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def share(option: str, text: str) -> float:
    """Returns 0.03 for 3% or 0.03. Raises ConfigError unless 0 ≤ share < 1."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value < 1:
        near = f"; did you mean {number}%?" if not percent and value >= 1 else ""
        raise ConfigError(f"{option} {text}: give a share from 0% to below 100%, such as 3% or 0.03{near}")
    return value
