"""`specbench sweep` and `tune`."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import command_line, flag, print_result, split, takes_run_options
from specbench.cli.arguments import path as path_of
from specbench.core.console import stderr, stdout
from specbench.core.errors import ConfigError
from specbench.specs.run import RunOptions

Task = Annotated[str, typer.Option(help="Task name or YAML file.")]
Runs = Annotated[str | None, typer.Option(help="Parent folder of the runs; existing runs are resumed.")]


@takes_run_options(without=("subsets_per_task", "allow_code_execution"))
def sweep(
    task: Task,
    method: Annotated[
        str, typer.Option(help="Method name or YAML file; without --path and --values it needs a key `sweep`.")
    ],
    path: Annotated[str | None, typer.Option(help="Key to sweep, such as verification.threshold.")] = None,
    values: Annotated[str | None, typer.Option(help="Values of --path, separated by commas.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="joint-temperature (--values: temperatures) or language-order.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="For language-order: texts sampled from the drafter to rank languages; by default 1000."),
    ] = None,
    measure_all: Annotated[
        bool, flag("--measure-all", help="Run every value, even if the records of one run can estimate it.")
    ] = False,
    checks: Annotated[
        int, typer.Option(help="Number of thresholds that are run to show the error of the estimates.")
    ] = 3,
    *,
    options: RunOptions,
    runs: Runs = None,
    leaderboard: Annotated[
        str | None, typer.Option(help="Leaderboard JSON that measured rows are merged into.")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="File for a plot of the sweep, such as sweep.png.")] = None,
    as_json: Annotated[bool, flag("--json", help="Print the numbers as JSON instead of tables.")] = False,
) -> None:
    """Measure a method at several values of a key. For a fuzzy method, one run estimates all thresholds and lengths."""
    from specbench.analysis.recipes import run_recipe
    from specbench.analysis.sweep import run_sweep
    from specbench.running.request import Request

    if samples is not None and recipe is None:
        raise ConfigError(f"--samples {samples}: is only for --recipe language-order: remove it")
    request = Request(
        split(task), split(method), options, command_line(), output=path_of("--runs", runs),
        leaderboard=path_of("--leaderboard", leaderboard), plot=path_of("--plot", plot),
    )  # fmt: skip
    if recipe is not None:
        report = run_recipe(request, recipe, path, values, samples, stderr)
    else:
        report = run_sweep(request, path, values, measure_all=measure_all, num_checks=checks, console=stderr)
    print_result(report.data, as_json, lambda: report.tables)
    if not as_json:
        stdout.print(f"runs: {report.folder}", soft_wrap=True)


@takes_run_options(
    without=("subsets_per_task", "allow_code_execution"),
    limit="Examples per subset, of which --calibration selects a part.",
    seed="Seed of the selected examples and of every random stream.",
)
def tune(
    task: Task,
    method: Annotated[str, typer.Option(help="Method name or YAML file; fuzzy methods get presets low, med and high.")],
    calibration: Annotated[
        str,
        typer.Option(help="Examples of each subset to tune on: a share or a number, in all at least 5."),
    ] = "0.25",
    lengths: Annotated[str | None, typer.Option(help="Draft lengths to try; by default 5,10,15,20.")] = None,
    sizes: Annotated[
        str | None,
        typer.Option(help="Numbers of draft tokens to try for draft trees; by default 4,8,16,32,64."),
    ] = None,
    step: Annotated[float, typer.Option(help="Distance between the thresholds to try for fuzzy methods.")] = 0.1,
    *,
    options: RunOptions,
    output: Annotated[
        str | None, typer.Option(help="Method file to write; for fuzzy methods three files, NAME-low.yaml, ….")
    ] = None,
    runs: Runs = None,
    as_json: Annotated[bool, flag("--json", help="Print the presets as JSON instead of a table.")] = False,
) -> None:
    """Tune a method's draft length or tree, and its thresholds, on some examples, and write the method files.

    Runs of the tuned methods exclude these examples.

    Without --output the files are METHOD-tuned.yaml, or -low, -med, -high.

    An existing file is replaced only if tune wrote it and nobody changed it since.
    """
    from specbench.analysis.tuned_methods import run_tune
    from specbench.running.request import Request

    request = Request(split(task), split(method), options, command_line(), output=path_of("--runs", runs))
    file = path_of("--output", output) or Path(f"{Path(method).stem}-tuned.yaml")
    tried = {"lengths": split(lengths) if lengths else None, "sizes": split(sizes) if sizes else None}
    report = run_tune(request, file, amount=calibration, step=step, console=stderr, **tried)
    print_result(report.data, as_json, lambda: report.tables)
    if not as_json:
        stdout.print(f"files: {', '.join(report.data['files'])}\nruns: {report.folder}", soft_wrap=True)
