"""`specbench tune`."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench.commands.arguments import path as path_of
from specbench.commands.arguments import split
from specbench.console import stderr, stdout


def tune(
    task: Annotated[str, typer.Option(help="Task name or YAML file.")],
    method: Annotated[str, typer.Option(help="Method name or YAML file; fuzzy ones get low, med and high.")],
    subset: Annotated[
        str | None, typer.Option(help="Subsets (languages), separated by commas; all when absent.")
    ] = None,
    calibration: Annotated[
        str, typer.Option(help="The slice of each subset that is tuned on: a share, or a number of examples.")
    ] = "0.25",
    lengths: Annotated[str, typer.Option(help="Draft lengths to try, separated by commas.")] = "5,10,15,20",
    step: Annotated[float, typer.Option(help="Step of the thresholds above T_SD.")] = 0.1,
    target: Annotated[
        str | None, typer.Option(help="Target model: hub id or folder; the embedded pair when absent.")
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="Draft model: hub id or folder.")] = None,
    target_revision: Annotated[str | None, typer.Option(help="Hub revision of the target.")] = None,
    drafter_revision: Annotated[str | None, typer.Option(help="Hub revision of the drafter.")] = None,
    data: Annotated[str | None, typer.Option(help="hub, sample, or a folder or file of rows.")] = None,
    limit: Annotated[int | None, typer.Option(help="Examples per subset, of which the slice is taken.")] = None,
    repeats: Annotated[int, typer.Option(help="Times that every example is measured.")] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key: generation.temperature=1")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the slice and of every random stream.")] = 0,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")] = "auto",
    chat: Annotated[str, typer.Option(help="Chat template: auto, always or never.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; 1 for the embedded pair, else torch's choice.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Method file to write; METHOD-tuned.yaml when absent.")] = None,
    runs: Annotated[str | None, typer.Option(help="Parent folder of the runs; the same one resumes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the presets as JSON instead of a table.")] = False,
) -> None:
    """Find a method's draft length and thresholds on a slice that is not evaluated, and write them as method files."""
    from specbench.execute import Request
    from specbench.tuning.reports import run_tune

    request = Request(
        tasks=split(task), methods=split(method), subsets=split(subset) if subset is not None else None,
        overrides=set_ or [], target=target, drafter=drafter, threads=threads, output=path_of("--runs", runs),
        leaderboard=None, plot=None, command=shlex.join(["specbench", *sys.argv[1:]]),
        options={"target_revision": target_revision, "drafter_revision": drafter_revision, "data": data, "limit": limit,
                 "repeats": repeats, "seed": seed, "dtype": dtype, "device": device, "chat": chat},
    )  # fmt: skip
    named = path_of("--output", output) or Path(f"{Path(method).stem}-tuned.yaml")
    report = run_tune(request, named, amount=calibration, lengths=split(lengths), step=step, console=stderr)
    if as_json:
        stdout.out(json.dumps(report.data, ensure_ascii=False, indent=2))
        return
    for table in report.tables:
        stdout.print(table)
    stdout.print(f"files: {', '.join(report.data['files'])}\nruns: {report.folder}", soft_wrap=True)
