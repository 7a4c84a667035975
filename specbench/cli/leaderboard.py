"""`specbench leaderboard`, `compare` and `check`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import flag, path, print_result, split
from specbench.core.console import fail, stderr, stdout
from specbench.core.errors import ConfigError

leaderboard = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
SHOWN = 50  # problems of a file
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Leaderboard files (JSON).")]


@leaderboard.callback()
def about() -> None:
    """Add to, check, merge and show leaderboard files."""


@leaderboard.command()
def add(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    to: Annotated[str, typer.Option(help="Leaderboard file; it is created where it does not exist.")],
) -> None:
    """Add the rows of runs, with the paths of their records, to a leaderboard file.

    Several processes may add to a file at the same time.

    A row replaces the file's row of the same configuration; the replaced rows are listed, with both speed-ups.

    All rows of a file are from one machine and one set of versions; other rows are rejected, showing both values.
    """
    from specbench.results.leaderboard_merge import add_runs

    file = path("--to", to)
    assert file is not None
    added = add_runs(runs, file)
    for line in added.replaced:
        stdout.print(line, soft_wrap=True)
    stdout.print(f"{file}: {added}", soft_wrap=True)


@leaderboard.command()
def merge(
    files: Files, to: Annotated[str, typer.Option(help="File that takes the rows of all: a new one, or one of them.")]
) -> None:
    """Merge leaderboard files; incompatible rows are rejected, showing both values.

    An audit verdict that only one of the files has is kept.
    """
    from specbench.results.leaderboard_merge import merge_files

    file = path("--to", to)
    assert file is not None
    stdout.print(f"{file}: {merge_files(files, file)}", soft_wrap=True)


@leaderboard.command()
def validate(
    files: Files,
    records: Annotated[bool, flag("--records", help="Compute every row again from the folder of its run.")] = False,
    run: Annotated[
        list[Path] | None, typer.Option(help="Folder of a run whose rows do not name it; may be given several times.")
    ] = None,
) -> None:
    """Check that leaderboard files are complete, unedited, and of one machine and set of versions; exit code 2 if not.

    All problems are printed, up to 50 of a file.

    Each row has a digest, which detects accidental changes but not forgery.

    --records recomputes every row from the folder of its run and compares all fields, numbers to twelve digits.

    Fields that cannot be recomputed (an audit without its report, fairness numbers) are listed as stated.
    """
    from specbench.analysis.audit_report import verdict_in_report
    from specbench.results.validation import validate as validated

    if run and not records:
        raise ConfigError(f"--run {run[0]}: has no effect without --records: add it, or leave this out")
    wrong = False
    for file in files:
        with stderr.status(f"checking {file}"):
            found = validated(file, records, run or [], verdict_in_report)
        for problem in found.problems[:SHOWN]:
            fail(ConfigError(problem))
        if len(found.problems) > SHOWN:
            fail(ConfigError(f"{file}: and {len(found.problems) - SHOWN} more problems"))
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
    """Print ranked tables, one per set of conditions; rows that the intervals cannot separate share ranks.

    A rank such as 2–3: the paired intervals cannot separate the row from its neighbours.

    Intervals are corrected for all pairs of a table (Bonferroni): of tables of equal rows, 5 % rank any of them.
    """
    from specbench.results.ranking import show as shown

    with stderr.status("reading the records"):
        found = shown(files, sort, filter_ or [], split(subset or ""), format_)
    for each in found:
        stdout.print(each, soft_wrap=isinstance(each, str))


def schema() -> None:
    """Print the JSON Schema of leaderboard files, with their format number."""
    from specbench.results.leaderboard import schema as made

    stdout.out(json.dumps(made(), indent=2, ensure_ascii=False))


SIDE = "The folder of a run, or a leaderboard file: PATH, PATH:METHOD, or FILE:NUMBER of a row."


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    second: Annotated[str, typer.Argument(metavar="B", help=SIDE)],
    task: Annotated[
        str | None, typer.Option(help="Tasks, separated by commas; all that both have when absent.")
    ] = None,
    subset: Annotated[
        str | None, typer.Option(help="Subsets, separated by commas; all that both have when absent.")
    ] = None,
    filter_: Annotated[
        list[str] | None, typer.Option("--filter", help="KEY=VALUE that rows of both must have: seed=0")
    ] = None,
    as_json: Annotated[bool, flag("--json", help="Print the comparison as JSON instead of tables.")] = False,
) -> None:
    """Compare two runs, methods or rows: configuration differences, then paired changes of the metrics.

    Of two paths, each method that both have is compared with itself. PATH:METHOD compares different methods.

    Intervals are over prompts, as if others of the task were drawn: equal values have an interval too.
    """
    from specbench.results.compare import compare as compared
    from specbench.results.compare import tables
    from specbench.results.comparison_input import read_input, select_rows

    tasks, subsets = split(task or ""), split(subset or "")
    inputs = [select_rows(read_input(text, filter_ or []), tasks, subsets) for text in (first, second)]
    with stderr.status("reading the records"):
        found = compared(*inputs)
    print_result(found.as_json(), as_json, lambda: tables(found))
    for line in found.unread if not as_json else ():
        stdout.print(line, soft_wrap=True)


REGRESSION = "How far a speed-up may fall, such as 3% or 0.03."
IGNORED = "Conditions that may differ, separated by commas: attention, device, dtype, target, versions."


def check(
    baseline: Annotated[str, typer.Option(help="Folder of a run, or leaderboard JSON; PATH:METHOD for one method.")],
    candidate: Annotated[str, typer.Option(help="Folder of the run that is judged; RUN:METHOD for one method.")],
    max_regression: Annotated[str, typer.Option(help=REGRESSION)] = "3%",
    ignore: Annotated[str | None, typer.Option(help=IGNORED)] = None,
    markdown: Annotated[str | None, typer.Option(help="File for the report as Markdown.")] = None,
    junit: Annotated[str | None, typer.Option(help="File for the report as JUnit XML.")] = None,
) -> None:
    """Check whether a run is worse than a baseline; exit code 0: no, 1: yes, 2: they cannot be compared.

    Same outputs: any increase of passes per token and any decrease of τ or α is a regression.

    Same tokens: another text, finish reason or score is a regression.

    Other outputs are a regression of a lossless method, except near-ties; of other methods τ is tested like a speed-up.

    Speed-ups: the whole interval of new ÷ old must be below 1 − MAX_REGRESSION to be a regression.

    With a leaderboard file as the baseline, outputs and draft passes are not compared, and intervals are not paired.

    If the file has several rows of a method, the one with the most similar conditions and options is used.
    """
    from specbench.core.files import check_output, write_output
    from specbench.results import check_report
    from specbench.results.check import check as compare

    files = {option: found for option, found in
             {"--markdown": path("--markdown", markdown), "--junit": path("--junit", junit)}.items()
             if found is not None}  # fmt: skip
    allowed = share("--max-regression", max_regression)
    for option, file in files.items():
        check_output(option, file)
    with stderr.status("reading the runs") as status:
        report = compare(baseline, candidate, allowed, split(ignore or ""), status.update)
    forms = {"--markdown": check_report.markdown, "--junit": check_report.junit}
    for option, file in files.items():
        write_output(option, file, forms[option](report) + "\n")
    for part in check_report.screen(report):
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
