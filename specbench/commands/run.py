"""`specbench run`."""

import json
import shlex
import sys
from typing import Annotated

import typer

from specbench.commands import arguments
from specbench.commands.arguments import path, split
from specbench.console import stderr, stdout


def run(
    task: Annotated[str, typer.Option(help="Task names or YAML files, separated by commas.")],
    method: Annotated[str, typer.Option(help="Method names or YAML files, separated by commas; ar always joins them.")],
    subset: arguments.Subset = None,
    target: arguments.Target = None,
    drafter: arguments.Drafter = None,
    target_revision: arguments.TargetRevision = None,
    drafter_revision: arguments.DrafterRevision = None,
    data: arguments.Data = None,
    limit: arguments.Limit = None,
    repeats: arguments.Repeats = 1,
    set_: arguments.Overrides = None,
    seed: arguments.Seed = 0,
    dtype: arguments.Dtype = "auto",
    device: arguments.Device = "auto",
    chat: arguments.Chat = "auto",
    threads: arguments.Threads = None,
    output: Annotated[str | None, typer.Option(help="Folder of the run; the same one resumes.")] = None,
    leaderboard: Annotated[str | None, typer.Option(help="Leaderboard JSON that the rows are merged into.")] = None,
    plot: Annotated[str | None, typer.Option(help="Picture of speed-up and acceptance, such as speed.png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON instead of tables.")] = False,
) -> None:
    """Measure methods on tasks, beside autoregressive decoding; the same command resumes an interrupted run."""
    from specbench.execute import Request, execute

    request = Request(
        tasks=split(task), methods=split(method), subsets=split(subset) if subset is not None else None,
        overrides=set_ or [], target=target, drafter=drafter, threads=threads,
        output=path("--output", output), leaderboard=path("--leaderboard", leaderboard), plot=path("--plot", plot),
        command=shlex.join(["specbench", *sys.argv[1:]]),
        options={"target_revision": target_revision, "drafter_revision": drafter_revision, "data": data, "limit": limit,
                 "repeats": repeats, "seed": seed, "dtype": dtype, "device": device, "chat": chat},
    )  # fmt: skip
    outcome = execute(request, stderr)
    if as_json:
        stdout.out(json.dumps([row.model_dump(mode="json") for row in outcome.rows], ensure_ascii=False, indent=2))
        return
    from specbench.results.comparison import comparison_table
    from specbench.results.tables import run_table

    for group in outcome.tables():
        stdout.print(run_table(group))
    for group in outcome.comparisons():
        stdout.print(comparison_table(group))
    stdout.print(f"rows: {outcome.leaderboard}\nrecords: {outcome.records}", soft_wrap=True)
