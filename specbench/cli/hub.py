"""`specbench hub` and `specbench card`: what the Hugging Face hub shows of measurements."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import Bundles, Signers, flag, path_option, split
from specbench.core.console import counted, stderr, stdout
from specbench.core.errors import ConfigError
from specbench.core.progress import status_line

hub = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Drafter, head or target, as rows name it, or the last part of it.")
]
Sources = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN-OR-BOARD...", help="Leaderboard files, and folders of runs or sweeps; by default all in runs."
    ),
]
Filters = Annotated[
    list[str] | None, typer.Option("--filter", help="KEY=VALUE that rows must have: method=sd; may be repeated.")
]
Subsets = Annotated[str | None, typer.Option(help="Subsets, separated by commas; by default the `all` rows.")]


@hub.callback()
def about() -> None:
    """Write the files by which the Hugging Face hub shows results, and check them. Nothing is sent."""


@hub.command()
def results(
    model: Model,
    sources: Sources = None,
    *,
    dataset: Annotated[str, typer.Option(help="Benchmark of τ on the hub: OWNER/NAME of its data set.")],
    source: Annotated[str, typer.Option(help="Address of what stands behind the numbers, such as a bundle.")],
    output: Annotated[Path, path_option(help="File to write: .eval_results/NAME.yaml of the model's repository.")],
    source_name: Annotated[str | None, typer.Option(help="Name of the source, as the hub shows it.")] = None,
    task_id: Annotated[
        str | None, typer.Option(help="Task of the benchmark, for a single row; by default TASK or TASK_SUBSET.")
    ] = None,
    filter_: Filters = None,
    subset: Annotated[str | None, typer.Option(help="Subsets, separated by commas; by default each of a task.")] = None,
    bundle: Bundles = None,
    signers: Signers = None,
) -> None:
    """Write the mean acceptance length τ of a model as the hub's evaluation results, a row each.

    τ does not depend on the machine. The notes of each result have its interval, n, target, drafter, method, sampling,
    data, verdict and warnings, since the hub has no keys for them.

    The rows are those in which MODEL drafts, or else those of methods on it that have no drafter of their own.

    MODEL must have been measured from the hub: a local folder or a dequantized copy is refused, as its weights may be
    others than those of a repository of this name. The file is checked against the documented form.
    """
    from specbench.core.files import write_output
    from specbench.publish.hub.forms import EvalResult, results_text
    from specbench.publish.hub.models import rows_of_model
    from specbench.publish.hub.results import Destination, hub_results
    from specbench.specs.components import build

    if output.suffix != ".yaml":
        raise ConfigError(f"--output {output}: the hub reads .eval_results/*.yaml: choose a name that ends in .yaml")
    place = {"dataset": {"id": dataset, "task_id": task_id or "any"}, "source": {"url": source, "name": source_name}}
    build(EvalResult, place | {"value": 0.0}, "results: ")  # before the rows are read
    with status_line("reading the rows"):
        subsets = split(subset or "")
        found = rows_of_model(model, sources or [], filter_ or [], subsets, bundle or [], signers, each_subset=True)
        made = hub_results(found, Destination(dataset, source, source_name, task_id))
    write_output("--output", output, results_text(made))
    stdout.print(f"{output}: {counted(len(made), 'result')} of {found.name}", soft_wrap=True)
    stdout.print(f"next: a pull request to {found.name} with it as .eval_results/{output.name}", soft_wrap=True)


@hub.command()
def benchmark(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of a task, or its YAML file.")],
    output: Annotated[Path, path_option(help="File to write: eval.yaml at the root of the data set.")],
    subset: Annotated[str | None, typer.Option(help="Subsets, separated by commas; by default all.")] = None,
    framework: Annotated[str, typer.Option(help="Framework, as the hub's list of frameworks has it.")] = "specbench",
    name: Annotated[str | None, typer.Option(help="Name of the benchmark; by default the title of the task.")] = None,
    description: Annotated[str | None, typer.Option(help="By default what τ is, and the task's version.")] = None,
) -> None:
    """Write the eval.yaml by which a data set on the hub becomes a benchmark of τ, with a task for each subset.

    The file is checked against the documented form. It registers no framework: the hub refuses names that its list does
    not have, of which a warning tells, and lists new benchmarks on request only.
    """
    from specbench.core.files import write_output
    from specbench.publish.hub.benchmark import benchmark_of
    from specbench.publish.hub.forms import benchmark_text
    from specbench.specs.catalogue import load_task

    place, made = benchmark_of(load_task(task), split(subset or ""), framework, name, description)
    write_output("--output", output, benchmark_text(made))
    stdout.print(f"{output}: {counted(len(made.tasks), 'task')}, for the root of {place} or a copy", soft_wrap=True)
    if made.unlisted:
        stderr.print(f"warning: {made.unlisted}", soft_wrap=True)


@hub.command()
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="eval.yaml, or files of .eval_results/.")],
) -> None:
    """Check files against the documented forms of the hub; exit code 2 if one differs."""
    from specbench.publish.hub.forms import Benchmark, read_form

    for file in files:
        found = read_form(file)
        what = (
            counted(len(found.tasks), "task") if isinstance(found, Benchmark) else counted(len(found.results), "result")
        )
        stdout.print(f"ok: {file} ({what})", soft_wrap=True)
        if isinstance(found, Benchmark) and found.unlisted:
            stderr.print(f"warning: {file}: {found.unlisted}", soft_wrap=True)


def card(
    model: Model,
    sources: Sources = None,
    front_matter: Annotated[
        bool, flag("--front-matter", help="Begin with YAML: tags, and τ as model-index for rows with data of the hub.")
    ] = False,
    output: Annotated[Path | None, path_option(help="Markdown file; by default it is printed.")] = None,
    filter_: Filters = None,
    subset: Subsets = None,
    bundle: Bundles = None,
    signers: Signers = None,
) -> None:
    """Print the part of a model card on speculative decoding, of a drafter, a head or a target.

    A table for each target (or drafter), sampling and machine: α, τ and speed-up with intervals, the difference of
    scores, and the verdict. Below it stand data, versions, and each warning in words; then the commands.

    A local folder is named as one, and never as a model of the hub.
    """
    from specbench.core.files import write_output
    from specbench.publish.hub.card import card as card_of
    from specbench.publish.hub.card import front_matter as front_matter_of
    from specbench.publish.hub.models import rows_of_model

    with status_line("reading the rows"):
        found = rows_of_model(model, sources or [], filter_ or [], split(subset or ""), bundle or [], signers)
        text = card_of(found)
    if front_matter:
        front, notes = front_matter_of(found)
        text = f"{front}\n{text}"
        for line in notes:
            stderr.print(f"note: {line}", soft_wrap=True)
    if output is None:
        stdout.out(text.rstrip("\n"))
        return
    write_output("--output", output, text)
    rows = counted(len(found.as_drafter) + len(found.as_target), "row")
    stdout.print(f"{output}: {rows} of {found.name}", soft_wrap=True)
