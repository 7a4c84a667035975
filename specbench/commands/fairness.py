"""`specbench fairness`."""

from typing import Annotated, Any

import typer

from specbench.commands import arguments
from specbench.commands.arguments import flag, path, split
from specbench.console import stderr, stdout

RUNS = "Folders of runs, each as RUN or RUN:METHOD; all methods that draft when no METHOD is given."


def fairness(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help=RUNS)] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(help="A further drafter that no run measured; may be given several times.")
    ] = None,
    before: Annotated[str | None, typer.Option(help="RUN or RUN:METHOD that --after is compared with.")] = None,
    after: Annotated[str | None, typer.Option(help="RUN or RUN:METHOD that is compared with --before.")] = None,
    reference: Annotated[
        str, typer.Option(help="Texts whose positions count: the target's own continuation, or those of the data.")
    ] = "continuation",
    samples: Annotated[
        int, typer.Option(help="Texts sampled from each drafter to rank languages; 0 for none; the paper: 100000.")
    ] = 1000,
    prompt: arguments.SamplePrompt = "",
    task: Annotated[str | None, typer.Option(help="Tasks of the runs, separated by commas; all when absent.")] = None,
    subset: arguments.Subset = None,
    data: Annotated[str | None, typer.Option(help="Folder or file of the runs' rows, if it was moved.")] = None,
    seed: arguments.Seed = 0,
    dtype: arguments.Dtype = "auto",
    device: arguments.Device = "auto",
    threads: arguments.Threads = None,
    leaderboard: Annotated[
        str | None, typer.Option(help="Leaderboard JSON whose rows of these runs get the numbers.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(help="Picture of rates, fitness and bounds, such as fairness.png.")
    ] = None,
    as_json: Annotated[bool, flag("--json", help="Print the report as JSON instead of tables.")] = False,
) -> None:
    """Say which languages a drafter serves worse, why, and what another drafter changes (arXiv:2510.02128).

    Measured, from the records: α, τ, speed-up, α · BLEU.

    Teacher-forced, on the same texts for all drafters: divergence, KL, TV, fitness, bounds, unfairness, spread.
    """
    from specbench.fairness.answer import answer
    from specbench.fairness.request import Request, check

    request = Request(
        runs=runs or (), before=before, after=after, drafters=drafter or (), reference=reference,  # type: ignore[arg-type]
        samples=samples, prompt=prompt, tasks=split(task or ""), subsets=split(subset or ""), data=data, seed=seed,
        dtype=dtype, device=device, threads=threads,
    )  # fmt: skip
    check(request)
    picture, board = path("--plot", plot), path("--leaderboard", leaderboard)
    if picture is not None:
        from specbench.results.plots import check_plot

        check_plot(picture)
    if board is not None:
        from specbench.fairness.rows import check_rows

        check_rows(board)
    with stderr.status("reading the runs") as status:
        found = answer(request, status.update)
    show(found, as_json)
    if picture is not None:
        from specbench.fairness.picture import draw

        draw(found.report, picture)
        stderr.print(f"picture: {picture}", soft_wrap=True)
    if board is not None:
        from specbench.fairness.rows import absent, add_to

        told = [f"{add_to(board, found)} rows got fairness numbers", absent(board, found)]
        stderr.print(f"{board}: {'; '.join(filter(None, told))}", soft_wrap=True)


def show(found: Any, as_json: bool) -> None:
    """The report on stdout."""
    from specbench.fairness.tables import tables

    if as_json:
        stdout.out(found.report.model_dump_json(indent=2))
        return
    for table in tables(found.report):
        stdout.print(table)
