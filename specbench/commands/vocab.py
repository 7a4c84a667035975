"""`specbench vocab`."""

from typing import Annotated

import typer

from specbench.commands import arguments
from specbench.commands.arguments import flag, split
from specbench.console import stderr, stdout


def vocab(
    target: Annotated[str, typer.Option(help="Target: hub id, folder, or embedded:NAME.")] = "embedded:target",
    drafter: Annotated[str, typer.Option(help="Drafter: hub id, folder, or embedded:NAME.")] = "embedded:drafter-bpe",
    target_revision: arguments.TargetRevision = None,
    drafter_revision: arguments.DrafterRevision = None,
    task: Annotated[
        str | None, typer.Option(help="Task whose prompts are the texts; the bundled prompts of mgsm when absent.")
    ] = None,
    subset: arguments.Subset = None,
    limit: Annotated[int | None, typer.Option(help="Prompts per subset; 50 over all subsets when absent.")] = None,
    data: arguments.Data = None,
    acceptance: Annotated[
        bool, flag("--acceptance", help="Load both models and compute the expected acceptance of each method.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the drafts and continuations behind --acceptance.")] = 0,
    dtype: Annotated[str, typer.Option(help="For --acceptance: auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="For --acceptance: auto, cuda, mps or cpu.")] = "auto",
    as_json: Annotated[bool, flag("--json", help="Print the report as JSON instead of tables.")] = False,
) -> None:
    """Compare the vocabularies of a target and a drafter: overlap, injectivity, decompositions, fitting methods."""
    from specbench.vocab.compare import Comparison, compare
    from specbench.vocab.tables import parts

    asked = Comparison(
        target=target, drafter=drafter, target_revision=target_revision, drafter_revision=drafter_revision, task=task,
        subsets=split(subset) if subset is not None else None, limit=limit, data=data, acceptance=acceptance,
        seed=seed, dtype=dtype, device=device,
    )  # fmt: skip
    with stderr.status(f"comparing the vocabularies of {target} and {drafter}"):
        report = compare(asked, stderr)
    if as_json:
        stdout.out(report.model_dump_json(indent=2))
        return
    for part in parts(report):
        stdout.print(part)
