"""`specbench suite` and `specbench site`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import (
    Bundles,
    Files,
    Signers,
    flag,
    levels_in,
    path_option,
    split,
    takes_run_options,
)
from specbench.core.console import stderr, stdout
from specbench.core.errors import ConfigError
from specbench.core.progress import status_line
from specbench.specs.run_options import RunOptions

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="YAML file of a suite, or the name of a board: `specbench board list`.")
]
Runs = Annotated[Path | None, path_option(help="Folder of runs, with suites in `suites`; by default runs.")]


@takes_run_options(
    only=("limit", "data", "device", "engine", "warm_up", "threads", "trust_remote_code", "allow_code_execution")
)
def suite(
    name: Name,
    dry_run: Annotated[
        bool, flag("--dry-run", help="Print the runs, what is already measured, and the time of the rest.")
    ] = False,
    pair: Annotated[str | None, typer.Option(help="Pair of the suite; by default all.")] = None,
    task: Annotated[str | None, typer.Option(help="Tasks of the suite, separated by commas; by default all.")] = None,
    ray: Annotated[
        str | None, typer.Option(help="Share the runs among the workers of a ray cluster: local, or its address.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of --ray workers; by default one per GPU, or one without GPUs.")
    ] = None,
    *,
    options: RunOptions,
    runs: Runs = None,
    leaderboard: Annotated[
        Path | None, path_option(help="Leaderboard JSON of all rows; by default in the suite's folder.")
    ] = None,
) -> None:
    """Measure a grid: every task on every pair, at every temperature, with every seed and all methods.

    Each task on a pair, at one temperature with one seed, is a run in its own folder.

    The same command resumes an interrupted suite.

    A failed run does not stop the others. Failures are listed at the end, with exit code 1.

    The estimated time is based on one example of every task on every pair, measured before the grid starts.

    With --ray each worker has one GPU, or --threads CPUs if there is none, and does one run at a time.

    If a worker is lost, another worker continues its run from the records. After the third loss the run has failed.

    All workers need the same device, versions and commit, and the suite's files at the same path.
    """
    from specbench.publish.suite_runs import RUNS, load_suite, read_suite, runs_of
    from specbench.running.request import check_all, check_data

    check_all([partial(read_suite, name), partial(check_data, options.data)])
    from specbench.publish.forecast import forecast_table, make_forecast, problem_lines  # torch
    from specbench.publish.suite import measure_suite, show

    tasks = None if task is None else split(task)
    forecast = make_forecast(runs_of(load_suite(name), options, runs or RUNS, pair, tasks))
    if dry_run:
        stdout.print(forecast_table(forecast))
        for line in problem_lines(forecast):
            stdout.print(f"would fail here: {line}", soft_wrap=True, markup=False)
        return
    result = measure_suite(forecast, ray, workers, leaderboard)
    show(result, stdout)
    if result.failures:
        raise typer.Exit(1)


def site(
    files: Files,
    output: Annotated[Path, path_option(help="Folder of the site: new, empty, or an earlier site, which is replaced.")],
    title: Annotated[str, typer.Option(help="Title of the pages.")] = "specbench leaderboard",
    answers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Examples of each subset whose answers are shown: they may be private or licensed (default none).",
        ),
    ] = 0,
    prompts: Annotated[bool, flag("--prompts", help="With --answers: their prompts too, rendered again.")] = False,
    space: Annotated[
        bool, flag("--space", help="Add the README.md by which the folder is a static Space of the Hugging Face hub.")
    ] = False,
    license_: Annotated[
        str | None, typer.Option("--license", help="With --space: licence, as the hub names it: cc-by-4.0.")
    ] = None,
    bundle: Bundles = None,
    signers: Signers = None,
) -> None:
    """Build static pages of leaderboards: sortable tables, a page for each row, plots of quality and speed.

    The pages need no server and no network. A table's URL contains its view, so that the view can be linked.

    Rows of different machines and engines stand in sections of their own, and are not ranked against each other.

    A row's page shows its command, provenance, languages, accepted lengths, times and warnings.

    --answers adds a page for each run whose records are there: all methods side by side, the first difference marked.

    Plots: quality and speed with the Pareto front (a sweep is a curve); predicted and measured speed-ups.

    The same files always give the same pages.
    """
    from specbench.core.console import counted
    from specbench.publish.hub.space import Space
    from specbench.publish.site.build import ShownAnswers, build

    if prompts and not answers:
        raise ConfigError("--prompts: has no effect without --answers: add --answers N, or remove --prompts")
    if license_ is not None and not space:
        raise ConfigError(f"--license {license_}: has no effect without --space: add --space, or remove --license")
    shown = ShownAnswers(answers)
    if prompts:
        from specbench.running.recorded_prompts import rendered_prompts  # imports torch

        shown = ShownAnswers(answers, rendered_prompts)
    with status_line("building the site"):
        levels = levels_in(files, bundle, signers)
        built = build(files, output, title, shown, levels, Space(license_) if space else None)
    for line in built.warnings:
        stderr.print(f"warning: {line}", soft_wrap=True)
    counts = f"{counted(built.num_rows, 'row')}, {counted(built.num_files, 'file')}"
    stdout.print(f"{output / 'index.html'}: {counts}", soft_wrap=True)
