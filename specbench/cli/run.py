"""`specbench run` and `specbench lm-eval`."""

from dataclasses import replace
from typing import Annotated

import typer

from specbench.cli.arguments import (
    command_line,
    flag,
    limit_of,
    path,
    print_result,
    serving_of,
    split,
    takes_run_options,
)
from specbench.core.console import stderr, stdout
from specbench.specs.run import LEAST, SHARE, RunOptions


@takes_run_options(without=("limit",))
def run(
    task: Annotated[str, typer.Option(help="Names or YAML files of tasks, separated by commas; or all.")],
    method: Annotated[
        str | None,
        typer.Option(
            help="Names or YAML files of methods, separated by commas; ar is always measured too. With --servers: "
            "names of servers, by default all."
        ),
    ] = None,
    *,
    servers: Annotated[
        str | None,
        typer.Option(help="YAML file of servers: ar, and one for each method."),
    ] = None,
    options: RunOptions,
    limit: Annotated[
        str | None,
        typer.Option(
            help="Examples of each subset: a number, a share such as 0.1, or all. By default all, but of the embedded "
            f"models' bundled sample {SHARE} over all subsets, with at least {LEAST} of each."
        ),
    ] = None,
    lm_eval_include: Annotated[
        str | None, typer.Option(help="Folder with your own lm-eval tasks, for --task lm_eval:NAME.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Model that rates every answer, such as gpt-4o.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="URL of the judge's server; by default OpenAI's.")] = None,
    judge_prices: Annotated[
        str | None, typer.Option(help="IN,OUT: dollars per million tokens, to compute the cost of the judge.")
    ] = None,
    judge_dry_run: Annotated[
        bool, flag("--judge-dry-run", help="Print the requests to the judge without sending them.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(help="Folder of the run; by default runs/TASK-METHOD-DIGEST. An existing run is resumed."),
    ] = None,
    leaderboard: Annotated[str | None, typer.Option(help="Leaderboard JSON that the rows are merged into.")] = None,
    plot: Annotated[
        str | None,
        typer.Option(help="File for a plot of speed-up and acceptance, and of throughput by load, such as speed.png."),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            help="Trackers that log the numbers, separated by commas: wandb, mlflow, tensorboard or plug-ins."
        ),
    ] = None,
    as_json: Annotated[bool, flag("--json", help="Print the rows as JSON instead of tables.")] = False,
) -> None:
    """Measure methods and autoregressive decoding on tasks. The same command resumes an interrupted run."""
    from specbench.results.execute import execute
    from specbench.running.request import Request
    from specbench.tasks.sandbox import run as permission

    permission.allow(options.allow_code_execution)
    judging = None
    if judge is not None or judge_base_url is not None or judge_prices is not None or judge_dry_run:
        from specbench.tasks.judge.judgements import make_judging

        judging = make_judging(judge, judge_base_url, judge_prices, judge_dry_run)
    request = Request(
        split(task), split(method or ""), replace(options, limit=limit_of(limit)), command_line(),
        output=path("--output", output), servers=path("--servers", servers),
        leaderboard=path("--leaderboard", leaderboard), plot=path("--plot", plot),
        lm_eval_include=path("--lm-eval-include", lm_eval_include), judging=judging,
        loggers=split(log or ""),
    )  # fmt: skip
    with serving_of(servers) as load_pair:
        outcome = execute(request, stderr, load_pair, has_default_limit=limit is None)
    rows = [row.model_dump(mode="json") for row in outcome.rows]
    print_result(rows, as_json, outcome.tables)
    if not as_json:
        stdout.print(f"rows: {outcome.leaderboard}\nrecords: {outcome.records}", soft_wrap=True)


def lm_eval(context: typer.Context) -> None:
    """Run lm-eval with a method; its table also shows acceptance and tokens/s.

    --model_args pretrained=TARGET,drafter=DRAFTER,method=NAME,baseline=true --tasks NAMES. baseline=true adds speed-up.

    All other options are lm-eval's: `specbench lm-eval run --tasks x --limit 5 --output_path DIR`.
    """
    from specbench.integrations.lm_eval.evaluation import main

    main(context.args)
