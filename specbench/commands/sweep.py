"""`specbench sweep`."""

import json
import shlex
import sys
from typing import Annotated

import typer

from specbench.commands import arguments
from specbench.commands.arguments import flag, split
from specbench.commands.arguments import path as path_of
from specbench.console import stderr, stdout
from specbench.errors import ConfigError


def sweep(
    task: Annotated[str, typer.Option(help="Task name or YAML file.")],
    method: Annotated[str, typer.Option(help="Method name or YAML file, with a `sweep` of its own or --values.")],
    path: Annotated[str | None, typer.Option(help="The key to sweep, such as verification.threshold.")] = None,
    values: Annotated[str | None, typer.Option(help="Values of --path, separated by commas.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="joint-temperature (--values: temperatures) or language-order.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Texts of the drafter that rank the languages of language-order; 1000.")
    ] = None,
    every: Annotated[bool, flag("--every", help="Run every value, also where one run can tell them.")] = False,
    check: Annotated[int, typer.Option(help="Thresholds that are run to show the error of the estimates.")] = 3,
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
    engine: arguments.Engine = "eager",
    chat: arguments.Chat = "auto",
    threads: arguments.Threads = None,
    output: Annotated[str | None, typer.Option(help="Parent folder of the runs; the same one resumes.")] = None,
    leaderboard: Annotated[
        str | None, typer.Option(help="Leaderboard JSON that measured rows are merged into.")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Picture of the sweep, such as sweep.png.")] = None,
    as_json: Annotated[bool, flag("--json", help="Print the numbers as JSON instead of tables.")] = False,
) -> None:
    """Measure a method at several values of a key; for a fuzzy method one run estimates all thresholds and lengths."""
    from specbench.request import Request
    from specbench.tuning.recipes import run_recipe
    from specbench.tuning.reports import run_sweep

    if samples is not None and recipe is None:
        raise ConfigError(f"--samples {samples}: is for --recipe language-order: leave it out")
    request = Request(
        tasks=split(task), methods=split(method), subsets=split(subset) if subset is not None else None,
        overrides=set_ or [], target=target, drafter=drafter, threads=threads,
        output=path_of("--output", output), leaderboard=path_of("--leaderboard", leaderboard),
        plot=path_of("--plot", plot), command=shlex.join(["specbench", *sys.argv[1:]]),
        options={"target_revision": target_revision, "drafter_revision": drafter_revision, "data": data, "limit": limit,
                 "repeats": repeats, "seed": seed, "dtype": dtype, "device": device, "engine": engine,
                 "chat": chat},
    )  # fmt: skip
    if recipe is not None:
        report = run_recipe(request, recipe, path, values, samples, stderr)
    else:
        report = run_sweep(request, path, values, every=every, num_checks=check, console=stderr)
    if as_json:
        stdout.out(json.dumps(report.data, ensure_ascii=False, indent=2))
        return
    for table in report.tables:
        stdout.print(table)
    stdout.print(f"runs: {report.folder}", soft_wrap=True)
