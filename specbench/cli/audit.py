"""`specbench audit`."""

import shlex
import sys
from typing import Annotated

import typer

from specbench.cli import arguments
from specbench.cli.arguments import flag, path, split
from specbench.core.console import saying, stderr, stdout
from specbench.core.errors import ConfigError


def audit(
    method: Annotated[str, typer.Option(help="Method names or YAML files, separated by commas; or all.")],
    task: Annotated[str, typer.Option(help="Task name or YAML file that the prompts are from.")] = "mgsm",
    subset: arguments.Subset = None,
    target: arguments.Target = None,
    drafter: arguments.Drafter = None,
    target_revision: arguments.TargetRevision = None,
    drafter_revision: arguments.DrafterRevision = None,
    data: arguments.Data = None,
    limit: Annotated[
        int | None, typer.Option(help="Examples per subset; when absent, as many as make 8 prompts.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws of each method for the distribution test; 0 leaves it out.")] = 600,
    temperature: Annotated[float, typer.Option(help="Temperature of the draws.")] = 1.0,
    set_: arguments.Overrides = None,
    seed: arguments.Seed = 0,
    dtype: arguments.Dtype = "auto",
    device: arguments.Device = "auto",
    engine: arguments.Engine = "auto",
    chat: arguments.Chat = "auto",
    threads: arguments.Threads = None,
    output: Annotated[str | None, typer.Option(help="File that the report is written to, as JSON.")] = None,
    leaderboard: Annotated[
        str | None, typer.Option(help="Leaderboard JSON whose rows of these methods and models get the verdict.")
    ] = None,
    as_json: Annotated[bool, flag("--json", help="Print the report as JSON instead of a table.")] = False,
) -> None:
    """Say of methods whether they are lossless on a pair of models; exit code 1 if one is not that claims to be."""
    from specbench.analysis.audit.output import check_place, write_report
    from specbench.analysis.audit.report import audit_table, paragraphs
    from specbench.analysis.audit.request import run_audit
    from specbench.results.adding import relative
    from specbench.results.leaderboard import check_writable, load, set_verdicts
    from specbench.running.request import Request

    tasks = split(task)
    if len(tasks) != 1:
        raise ConfigError(f"--task {task}: an audit takes its prompts from one task: name one")
    request = Request(
        tasks=tasks, methods=split(method), subsets=split(subset) if subset is not None else None,
        overrides=set_ or [], target=target, drafter=drafter, threads=threads, output=None, leaderboard=None,
        plot=None, command=shlex.join(["specbench", *sys.argv[1:]]),
        options={"target_revision": target_revision, "drafter_revision": drafter_revision, "data": data, "limit": limit,
                 "seed": seed, "dtype": dtype, "device": device, "engine": engine,
                 "chat": chat},
    )  # fmt: skip
    file = path("--output", output)
    if file is not None:
        check_place(file)
    board = path("--leaderboard", leaderboard)
    if board is not None:  # one that cannot take the verdicts is reported before anything is tried
        load(board)
        check_writable(board)
    with saying("loading") as say:
        report = run_audit(request, draws, temperature, say, stderr)
    text = report.model_dump_json(indent=2)
    if file is not None:
        write_report(file, text)
    if as_json:
        stdout.out(text)
    else:
        stdout.print(audit_table(report))
        for paragraph in paragraphs(report):
            stdout.print(paragraph)
    if board is not None:
        kept = None if file is None else relative(file, board)
        stderr.print(f"{board}: {set_verdicts(board, report.with_place(kept))} rows got a verdict", soft_wrap=True)
        if kept is None:
            stderr.print("the evidence names no report, so that validate says 'stated': give --output to keep one")
    if not report.as_declared:
        raise typer.Exit(1)
