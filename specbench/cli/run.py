"""`specbench run`."""

import json
import shlex
import sys
from typing import Annotated

import typer

from specbench.cli import arguments
from specbench.cli.arguments import flag, path, split
from specbench.core.console import stderr, stdout


def run(
    task: Annotated[str, typer.Option(help="Task names or YAML files, separated by commas; or all.")],
    method: Annotated[str, typer.Option(help="Method names or YAML files, separated by commas; ar always joins them.")],
    subset: arguments.Subset = None,
    subsets_per_task: Annotated[int | None, typer.Option(help="The first N subsets of each task.")] = None,
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
    engine: arguments.Engine = "auto",
    chat: arguments.Chat = "auto",
    threads: arguments.Threads = None,
    allow_code_execution: Annotated[
        bool, flag("--allow-code-execution", help="Run the programs that the models write, to score them.")
    ] = False,
    lm_eval_include: Annotated[
        str | None, typer.Option(help="Folder with lm-eval tasks of your own, for --task lm_eval:NAME.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Model that rates every answer, such as gpt-4o.")] = None,
    judge_base_url: Annotated[str | None, typer.Option(help="Server of the judge, if not OpenAI's.")] = None,
    judge_prices: Annotated[
        str | None, typer.Option(help="IN,OUT: dollars per million tokens, to count what the judge costs.")
    ] = None,
    judge_dry_run: Annotated[
        bool, flag("--judge-dry-run", help="Print what the judge would be asked; send nothing.")
    ] = False,
    output: Annotated[str | None, typer.Option(help="Folder of the run; the same one resumes.")] = None,
    leaderboard: Annotated[str | None, typer.Option(help="Leaderboard JSON that the rows are merged into.")] = None,
    plot: Annotated[str | None, typer.Option(help="Picture of speed-up and acceptance, such as speed.png.")] = None,
    as_json: Annotated[bool, flag("--json", help="Print the rows as JSON instead of tables.")] = False,
) -> None:
    """Measure methods on tasks, beside autoregressive decoding; the same command resumes an interrupted run."""
    from specbench.results.execute import execute
    from specbench.running.request import Request
    from specbench.tasks.judge.judging import judging_of
    from specbench.tasks.sandbox import run as permission

    permission.allow(allow_code_execution)
    request = Request(
        tasks=split(task), methods=split(method), subsets=split(subset) if subset is not None else None,
        overrides=set_ or [], target=target, drafter=drafter, threads=threads,
        output=path("--output", output), leaderboard=path("--leaderboard", leaderboard), plot=path("--plot", plot),
        command=shlex.join(["specbench", *sys.argv[1:]]),
        options={"target_revision": target_revision, "drafter_revision": drafter_revision, "data": data, "limit": limit,
                 "subsets_per_task": subsets_per_task, "repeats": repeats, "seed": seed, "dtype": dtype,
                 "device": device, "engine": engine, "chat": chat},
        lm_eval_include=path("--lm-eval-include", lm_eval_include),
        judging=judging_of(judge, judge_base_url, judge_prices, judge_dry_run),
    )  # fmt: skip
    outcome = execute(request, stderr)
    if as_json:
        stdout.out(json.dumps([row.model_dump(mode="json") for row in outcome.rows], ensure_ascii=False, indent=2))
        return
    from specbench.results.breakdown import breakdown_table
    from specbench.results.tables import comparison_table, overview_table, run_table

    for group in outcome.tables():
        stdout.print(run_table(group))
    groups = outcome.by_task()
    for group in groups:
        if len(group) > 2:
            stdout.print(comparison_table(group))
        stdout.print(breakdown_table(group))
    if len(groups) > 1:
        stdout.print(overview_table(groups))
    stdout.print(f"rows: {outcome.leaderboard}\nrecords: {outcome.records}", soft_wrap=True)
