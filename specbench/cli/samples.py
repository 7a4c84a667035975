"""`specbench sample` and `specbench answers`: what a model is asked, and what it answered."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import amount, command_line, flag, path_option, print_result, split
from specbench.cli.arguments import takes_run_options as takes
from specbench.core.console import counted, stderr, stdout
from specbench.core.errors import ConfigError
from specbench.specs.run_options import RunOptions

# Options of a run that change no prompt of the target. Those about loading weights have no effect either.
NO_EFFECT = (
    "limit", "drafter", "drafter_revision", "repeats", "seed", "dtype", "device", "quantize", "device_map", "engine",
    "threads", "warm_up", "allow_code_execution",
)  # fmt: skip


@takes(without=NO_EFFECT)
def sample(
    tasks: Annotated[str, typer.Argument(metavar="TASK", help="Names or YAML files of tasks, separated by commas.")],
    *,
    options: RunOptions,
    limit: Annotated[str, typer.Option(help="Examples of each subset: a number, a share such as 0.1, or all.")] = "1",
    lm_eval_include: Annotated[
        Path | None, path_option(help="Folder with your own lm-eval tasks, for TASK lm_eval:NAME.")
    ] = None,
    as_json: Annotated[bool, flag("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Print prompts exactly as a target reads them: few-shot examples, chat template and special tokens.

    With their token ids, the settings that end the answer, the reference and the scorer.

    Reads the tokenizer and the configuration of --target, not its weights.
    """
    from specbench.running.request import Request, check_request

    options = replace(options, limit=None if limit == "all" else amount("--limit", limit))
    request = Request(split(tasks), ["ar"], options, command_line(), lm_eval_include=lm_eval_include)
    check_request(request)
    from specbench.running.samples import prompt_samples  # imports torch

    samples = prompt_samples(request, stderr)
    print_result([asdict(each) for each in samples], as_json, list)
    if not as_json:
        print_parts(each.lines() for each in samples)


def answers(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    subset: Annotated[str | None, typer.Option(help="Subsets, separated by commas; by default all.")] = None,
    example: Annotated[str | None, typer.Option(help="Ids of examples, separated by commas; by default all.")] = None,
    method: Annotated[str | None, typer.Option(help="Methods, separated by commas; by default all, with ar.")] = None,
    only_wrong: Annotated[
        bool, flag("--only-wrong", help="Only records with an answer scored below 1, or not.")
    ] = False,
    limit: Annotated[str, typer.Option(help="Records to show: a number, or all.")] = "10",
    data: Annotated[str | None, typer.Option(help="Folder or file of the rows, if the run's data moved.")] = None,
    page: Annotated[Path | None, path_option(help="HTML file to write the records into, such as answers.html.")] = None,
    trust_remote_code: Annotated[bool, flag("--trust-remote-code", help="Run a tokenizer's Python code.")] = False,
    as_json: Annotated[bool, flag("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show the answers of a run: prompt, reference, each method's answer, its scores, and why it got them.

    Prompts are rendered again from the task, its data and the tokenizer, and checked against the run's digests.
    """
    from specbench.results.runs import finished_run
    from specbench.running.request import check_all, check_data

    most = None if limit == "all" else amount("--limit", limit)
    if isinstance(most, float):
        raise ConfigError(f"--limit {limit}: give a number of records, or all")
    check_all([partial(finished_run, run), partial(check_data, data)])
    from specbench.running.recorded_prompts import Selection, shown_run  # imports torch

    subsets, examples, methods = (tuple(split(each or "")) for each in (subset, example, method))
    chosen = Selection(subsets, examples, methods, only_wrong, most)
    shown = shown_run(finished_run(run), chosen, data, trust_remote_code)
    for line in shown.problems:
        stderr.print(f"warning: {line}", soft_wrap=True)
    if page is not None:
        from specbench.publish.site.answers import write_page

        write_page(page, str(run), shown)
        stdout.print(f"{page}: {counted(len(shown.records), 'record')} of {shown.num_matching:,}", soft_wrap=True)
        return
    print_result([asdict(each) for each in shown.records], as_json, list)
    if not as_json:
        print_parts(each.lines() for each in shown.records)
        more = "" if len(shown.records) == shown.num_matching else "; --limit all shows all"
        stdout.print(f"{len(shown.records):,} of {counted(shown.num_matching, 'record')}{more}", soft_wrap=True)


def print_parts(parts: Iterable[Iterable[str]]) -> None:
    """Prints each part's lines, with an empty line after it."""
    for lines in parts:
        for line in lines:
            stdout.print(line, soft_wrap=True)
        stdout.print()
