"""`specbench sweep`."""

import json
import shlex
import sys
from typing import Annotated

import typer

from specbench.commands.arguments import path as path_of
from specbench.commands.arguments import split
from specbench.console import stderr, stdout


def sweep(
    task: Annotated[str, typer.Option(help="Task name or YAML file.")],
    method: Annotated[str, typer.Option(help="Method name or YAML file, with a `sweep` of its own or --values.")],
    path: Annotated[str | None, typer.Option(help="The key to sweep, such as verification.threshold.")] = None,
    values: Annotated[str | None, typer.Option(help="Values of --path, separated by commas.")] = None,
    every: Annotated[bool, typer.Option("--every", help="Run every value, also where one run can tell them.")] = False,
    check: Annotated[int, typer.Option(help="Thresholds that are run to show the error of the estimates.")] = 3,
    subset: Annotated[
        str | None, typer.Option(help="Subsets (languages), separated by commas; all when absent.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Target model: hub id or folder; the embedded pair when absent.")
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="Draft model: hub id or folder.")] = None,
    target_revision: Annotated[str | None, typer.Option(help="Hub revision of the target.")] = None,
    drafter_revision: Annotated[str | None, typer.Option(help="Hub revision of the drafter.")] = None,
    data: Annotated[str | None, typer.Option(help="hub, sample, or a folder or file of rows.")] = None,
    limit: Annotated[int | None, typer.Option(help="Examples per subset.")] = None,
    repeats: Annotated[int, typer.Option(help="Times that every example is measured.")] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key: generation.temperature=1")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random stream.")] = 0,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")] = "auto",
    chat: Annotated[str, typer.Option(help="Chat template: auto, always or never.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; 1 for the embedded pair, else torch's choice.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Parent folder of the runs; the same one resumes.")] = None,
    leaderboard: Annotated[
        str | None, typer.Option(help="Leaderboard JSON that measured rows are merged into.")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Picture of the sweep, such as sweep.png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON instead of tables.")] = False,
) -> None:
    """Measure a method at several values of a key; for a fuzzy method one run estimates all thresholds and lengths."""
    from specbench.execute import Request
    from specbench.tuning.reports import run_sweep

    request = Request(
        tasks=split(task), methods=split(method), subsets=split(subset) if subset is not None else None,
        overrides=set_ or [], target=target, drafter=drafter, threads=threads,
        output=path_of("--output", output), leaderboard=path_of("--leaderboard", leaderboard),
        plot=path_of("--plot", plot), command=shlex.join(["specbench", *sys.argv[1:]]),
        options={"target_revision": target_revision, "drafter_revision": drafter_revision, "data": data, "limit": limit,
                 "repeats": repeats, "seed": seed, "dtype": dtype, "device": device, "chat": chat},
    )  # fmt: skip
    report = run_sweep(request, path, values, every=every, num_checks=check, console=stderr)
    if as_json:
        stdout.out(json.dumps(report.data, ensure_ascii=False, indent=2))
        return
    for table in report.tables:
        stdout.print(table)
    stdout.print(f"runs: {report.folder}", soft_wrap=True)
