"""`specbench check`."""

from typing import Annotated

import typer

from specbench.commands.arguments import path, split
from specbench.console import stderr, stdout
from specbench.errors import ConfigError

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
    """Say whether a run is worse than a baseline; exit code 0: no, 1: yes, 2: they cannot be compared.

    Of the same outputs, more target or draft passes per token or a lower τ or α is a regression, however small, and so
    is another text, finish or score of the same tokens. A run beside itself is identical, with exit code 0.

    Outputs of lossless methods must be the baseline's, near-ties apart; of others τ is judged like a speed-up.

    A speed-up has regressed where the whole interval of new ÷ old lies below 1 − MAX_REGRESSION.

    With a leaderboard as the baseline outputs and draft passes are not compared, and intervals are not paired.

    Of several rows of a method there, the one whose conditions and options are nearest is taken.
    """
    from specbench.audit.output import check_place, write_report
    from specbench.gate import junit as junit_xml
    from specbench.gate import markdown as markdown_text
    from specbench.gate.check import check as compare
    from specbench.gate.screen import screen

    files = {option: found for option, found in
             {"--markdown": path("--markdown", markdown), "--junit": path("--junit", junit)}.items()
             if found is not None}  # fmt: skip
    allowed = share("--max-regression", max_regression)
    for option, file in files.items():
        check_place(file, option)
    with stderr.status("reading the runs") as status:
        report = compare(baseline, candidate, allowed, split(ignore or ""), status.update)
    forms = {"--markdown": markdown_text.markdown, "--junit": junit_xml.junit}
    for option, file in files.items():
        write_report(file, forms[option](report), option)
    for part in screen(report):
        stdout.print(part)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def share(option: str, text: str) -> float:
    """3% or 0.03 as 0.03. Raises ConfigError for what is no share below 1."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value < 1:
        near = f"; did you mean {number}%?" if not percent and value >= 1 else ""
        raise ConfigError(f"{option} {text}: give a share from 0% to below 100%, such as 3% or 0.03{near}")
    return value
