"""`specbench run`, `lm-eval`, `sweep` and `tune`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.arguments import (
    AsJson,
    Plot,
    amount,
    command_line,
    flag,
    names_in,
    path_option,
    print_result,
    serving_of,
    split,
    takes_run_options,
)
from specbench.core.console import stderr, stdout
from specbench.core.environment import require
from specbench.core.errors import ConfigError
from specbench.specs.run_options import LEAST, SHARE, RunOptions

if TYPE_CHECKING:
    from specbench.running.request import Request


@takes_run_options(without=("limit",))
def run(
    task: Annotated[
        str,
        typer.Option(
            help="Names or YAML files of tasks, separated by commas; or all.", autocompletion=names_in("tasks")
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="Names or YAML files of methods, separated by commas; ar is always measured too. With --servers: "
            "names of servers, by default all.",
            autocompletion=names_in("methods"),
        ),
    ] = None,
    servers: Annotated[Path | None, path_option(help="YAML file of servers: ar, and one for each method.")] = None,
    *,
    options: RunOptions,
    limit: Annotated[
        str | None,
        typer.Option(
            help="Examples of each subset: a number, a share such as 0.1, or all. By default all, but of the embedded "
            f"models' bundled sample {SHARE} over all subsets, with at least {LEAST} of each."
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="CONDITION=VALUE,VALUE: a run at each value, in one table; may be given twice. Conditions: context "
            "(tokens of a prompt: 2k,4k), temperature, chat, thinking (on,off), seed, template.VARIABLE of the chat "
            "template, or a key of --set."
        ),
    ] = None,
    lm_eval_include: Annotated[
        Path | None, path_option(help="Folder with your own lm-eval tasks, for --task lm_eval:NAME.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Model that rates every answer, such as gpt-4o.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="URL of the judge's server; by default OpenAI's.")] = None,
    judge_prices: Annotated[
        str | None, typer.Option(help="IN,OUT: dollars per million tokens, to compute the cost of the judge.")
    ] = None,
    judge_template: Annotated[
        Path | None, path_option(help="YAML file with another prompt for the judge, and its form of a rating.")
    ] = None,
    judge_dry_run: Annotated[
        bool, flag("--judge-dry-run", help="Print the requests to the judge without sending them.")
    ] = False,
    output: Annotated[
        Path | None,
        path_option(help="Folder of the run; by default runs/TASK-METHOD-DIGEST. An existing run is resumed."),
    ] = None,
    leaderboard: Annotated[Path | None, path_option(help="Leaderboard JSON that the rows are merged into.")] = None,
    plot: Plot = None,
    log: Annotated[
        str | None,
        typer.Option(
            help="Trackers that log the numbers, separated by commas: wandb, mlflow, tensorboard or plug-ins."
        ),
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", help="Show what would be measured; load no weights and write no files.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure methods and autoregressive decoding on tasks. The same command resumes an interrupted run."""
    from specbench.running.request import Judge, Request, check_request
    from specbench.tasks.sandbox import run as permission

    options = replace(options, limit=None if limit == "all" else amount("--limit", limit))
    permission.allow(options.allow_code_execution)
    rating = Judge(judge, judge_base_url, judge_prices, judge_dry_run, judge_template)
    request = Request(
        split(task), split(method or ""), options, command_line(), output=output, servers=servers,
        leaderboard=leaderboard, plot=plot, lm_eval_include=lm_eval_include, loggers=split(log or ""),
        judge=None if rating == Judge(None) else rating, may_limit=limit is None,
    )  # fmt: skip
    requests = [request]
    if sweep:
        from specbench.running.sweep import sweep_requests

        requests = sweep_requests(request, sweep)
    for each in requests:
        check_request(each)
    if dry_run:
        if servers is not None:
            raise ConfigError("--dry-run: has no effect with --servers: `specbench validate` checks their file")
        if sweep:
            from specbench.running.sweep import plan_sweep  # imports torch

            for table in plan_sweep(requests, stderr):
                stdout.print(table)
            return
        from specbench.running.dry_run import dry_run as plan  # imports torch

        stdout.print(plan(request, stderr))
        return
    if sweep:
        print_sweep(requests, as_json=as_json)
        return
    from specbench.running.execute import execute  # imports torch

    with serving_of(servers) as load_pair:
        outcome = execute(request, stderr, load_pair)
    rows = [row.model_dump(mode="json") for row in outcome.rows]
    print_result(rows, as_json, outcome.tables)
    if not as_json:
        stdout.print(f"rows: {outcome.leaderboard}\nrecords: {outcome.records}", soft_wrap=True)


def print_sweep(requests: "Sequence[Request]", *, as_json: bool) -> None:
    """Measures the points of a sweep and prints a table of each task, or the rows of all points."""
    from specbench.report.sweep import RowsOfSweep
    from specbench.running.sweep import run_sweep

    with serving_of(requests[0].servers) as load_pair:
        folder = run_sweep(requests, stderr, load_pair)
    found = RowsOfSweep.read(folder)
    print_result([row.model_dump(mode="json") for row in found.rows], as_json, found.tables)
    if not as_json:
        stdout.print(f"runs: {folder}", soft_wrap=True)


def lm_eval(context: typer.Context) -> None:
    """Run lm-eval with a method; its table also shows acceptance and tokens/s.

    --model_args pretrained=TARGET,drafter=DRAFTER,method=NAME,baseline=true --tasks NAMES. baseline=true adds speed-up.

    All other options are lm-eval's: `specbench lm-eval run --tasks x --limit 5 --output_path DIR`.
    """
    from specbench.running.request import check_all, check_model

    check_all([
        partial(require, "lm_eval", "specbench lm-eval"),
        *(partial(check_model, name) for name in models_of(context.args)),
    ])  # fmt: skip
    from specbench.integrations.lm_eval.evaluation import main  # imports lm_eval and torch

    main(context.args)


def models_of(words: Sequence[str]) -> Iterator[str]:
    """Yields the models that --model_args of lm-eval's command line names, whose own parser takes seconds to import."""
    is_given = False
    for word in words:
        if word.startswith("-"):
            option, _, word = word.partition("=")
            is_given = option in ("--model_args", "-a")
        for pair in word.split(",") if is_given else ():
            name, equals, value = pair.partition("=")
            if equals and value and name.strip() in ("pretrained", "drafter"):
                yield value.strip()


Task = Annotated[str, typer.Option(help="Task name or YAML file.", autocompletion=names_in("tasks"))]
Runs = Annotated[Path | None, path_option(help="Parent folder of the runs; existing runs are resumed.")]


@takes_run_options(without=("subsets_per_task", "allow_code_execution"))
def sweep(
    task: Task,
    method: Annotated[
        str,
        typer.Option(
            help="Method name or YAML file; without --path and --values it needs a key `sweep`.",
            autocompletion=names_in("methods"),
        ),
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
        Path | None, path_option(help="Leaderboard JSON that measured rows are merged into.")
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Measure a method at several values of a key. For a fuzzy method, one run estimates all thresholds and lengths."""
    from specbench.running.request import Request, check_request

    if samples is not None and recipe != "language-order":
        raise ConfigError(f"--samples {samples}: is only for --recipe language-order: remove it")
    request = Request(
        split(task), split(method), options, command_line(), output=runs, leaderboard=leaderboard, plot=plot,
    )  # fmt: skip
    check_request(request)
    from specbench.analysis.tuning.sweep import run_recipe, run_sweep  # imports torch

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
    method: Annotated[
        str,
        typer.Option(
            help="Method name or YAML file; fuzzy methods get presets low, med and high.",
            autocompletion=names_in("methods"),
        ),
    ],
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
        Path | None, path_option(help="Method file to write; for fuzzy methods three files, NAME-low.yaml, ….")
    ] = None,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Tune a method's draft length or tree, and its thresholds, on some examples, and write the method files.

    A method with `draft_length` gets the fastest policy, with its threshold or costs, or the fastest fixed length.

    Runs of the tuned methods exclude these examples.

    Without --output the files are METHOD-tuned.yaml, or -low, -med, -high.

    An existing file is never replaced.
    """
    from specbench.running.request import Request, check_request

    request = Request(split(task), split(method), options, command_line(), output=runs)
    file = output or Path(f"{Path(method).stem}-tuned.yaml")
    slice_amount = amount("--calibration", calibration)
    assert slice_amount is not None
    check_request(request)
    from specbench.analysis.tuning.tune import run_tune  # imports torch

    tried = {"lengths": split(lengths) if lengths else None, "sizes": split(sizes) if sizes else None}
    report = run_tune(request, file, amount=slice_amount, step=step, console=stderr, **tried)
    print_result(report.data, as_json, lambda: report.tables)
    if not as_json:
        stdout.print(f"files: {', '.join(report.files)}\nruns: {report.folder}", soft_wrap=True)
