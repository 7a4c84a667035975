"""`specbench report`: a finished run as tables, or as a page."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import flag, path_option, whole_number
from specbench.core.console import stderr, stdout
from specbench.core.errors import ConfigError
from specbench.core.progress import status_line


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    html: Annotated[
        Path | None, path_option(help="HTML file for the report, such as report.html; it needs no other file.")
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            help="With --html: records of each subset whose answers are shown: a number, none or all (default)."
        ),
    ] = None,
    prompts: Annotated[bool, flag("--prompts", help="With --html: show the prompts too, rendered again.")] = False,
    data: Annotated[
        str | None, typer.Option(help="With --prompts: folder or file of the rows, if the run's data moved.")
    ] = None,
    trust_remote_code: Annotated[
        bool, flag("--trust-remote-code", help="With --prompts: run a tokenizer's Python code.")
    ] = False,
) -> None:
    """Print the tables of a finished run again, or write them as a page with figures, warnings and answers.

    The page has conditions, acceptance by position, pass costs, languages, quality with paired differences, verdicts,
    the prompts at which each method gains least, and the answers side by side, the first difference from AR marked.

    Each figure says whether it is measured or computed. Figures need the extra `plots`.
    """
    from specbench.report.shown import Selection, no_prompts, shown_run
    from specbench.report.tables import RunRows
    from specbench.results.runs import finished_run

    # 1. Options that do not go together.
    of_page = {"--answers": answers, "--prompts": prompts, "--data": data, "--trust-remote-code": trust_remote_code}
    for option, value in of_page.items():
        if value and html is None:
            raise ConfigError(f"{option}: has no effect without --html: add --html FILE, or remove {option}")
        if value and option in ("--data", "--trust-remote-code") and not prompts:
            raise ConfigError(f"{option}: has no effect without --prompts: add --prompts, or remove {option}")
    shown_answers = answers or "all"
    limit = whole_number("--answers", shown_answers)
    if limit is None and shown_answers not in ("all", "none"):
        raise ConfigError(f"--answers {shown_answers:.40}: give a number of records, none or all")
    if prompts and shown_answers == "none":
        raise ConfigError("--prompts: has no effect with --answers none: remove one of them")
    found = finished_run(run)
    if html is None:
        for table in RunRows(found.rows).tables():
            stdout.print(table)
        return
    # 2. The page.
    from specbench.core.files import check_output
    from specbench.publish.site.run_report import write_report

    check_output("--html", html)
    rendered = no_prompts
    if prompts:
        from specbench.running.recorded_prompts import rendered_prompts  # imports torch
        from specbench.running.request import check_data

        check_data(data)
        rendered = partial(rendered_prompts, data=data, trust_remote_code=trust_remote_code)
    with status_line("reading the records"):
        selection = Selection(limit_by_subset=limit)
        shown = None if shown_answers == "none" else shown_run(found, selection, rendered)
    for line in () if shown is None else shown.problems:
        stderr.print(f"warning: {line}", soft_wrap=True)
    with status_line("drawing"):
        write_report(html, found, shown)
    stdout.print(f"{html}: {html.stat().st_size / 1e6:.1f} MB", soft_wrap=True)
