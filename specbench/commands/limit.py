"""`specbench limit`."""

from typing import Annotated

import typer

from specbench.commands import arguments
from specbench.commands.arguments import flag, path
from specbench.console import saying, stderr, stdout


def limit(
    target: Annotated[str, typer.Option(help="Target: hub id, folder, or embedded:NAME.")] = "embedded:target",
    drafter: Annotated[str, typer.Option(help="Drafter: hub id, folder, or embedded:NAME.")] = "embedded:drafter",
    target_revision: arguments.TargetRevision = None,
    drafter_revision: arguments.DrafterRevision = None,
    context: Annotated[int, typer.Option(help="Cached tokens behind which passes of every length are timed.")] = 256,
    repeats: Annotated[int, typer.Option(help="Rounds, each with every pass of both models.")] = 9,
    seed: Annotated[int, typer.Option(help="Seed of the random texts.")] = 0,
    dtype: arguments.Dtype = "auto",
    device: arguments.Device = "auto",
    engine: arguments.Engine = "eager",
    threads: arguments.Threads = None,
    plot: Annotated[
        str | None, typer.Option(help="Picture of passes, bounds and speed-ups, such as limit.png.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="JSON file that the report is written into.")] = None,
    as_json: Annotated[bool, flag("--json", help="Print the report as JSON instead of tables.")] = False,
) -> None:
    """What the hardware allows a pair of models, beside what is measured: bounds, pass times, c, best draft lengths.

    Bare passes over 1 to 64 tokens (compiled: fewer), at several contexts, and the decode loop are timed in turn.

    So are copies, sums and matrix products.

    Bounds: bytes of weights and cache that a pass must read ÷ the bandwidth of copies;

    operations of a pass ÷ the rate of matrix products.
    """
    from specbench.limit.measuring import Asked, limits
    from specbench.limit.picture import draw
    from specbench.limit.saving import check_output, write
    from specbench.limit.tables import tables
    from specbench.resources import EMBEDDED
    from specbench.results.plots import check_plot
    from specbench.specs import build
    from specbench.threads import set_threads

    picture, file = path("--plot", plot), path("--output", output)
    if picture is not None:
        check_plot(picture)
        check_output("--plot", picture)
    if file is not None:
        check_output("--output", file)
    asked = build(Asked, {
        "target": target, "drafter": drafter, "target_revision": target_revision, "drafter_revision": drafter_revision,
        "context": context, "repeats": repeats, "seed": seed, "dtype": dtype, "device": device, "engine": engine,
    })  # fmt: skip
    set_threads(threads, target.startswith(EMBEDDED))
    with saying("measuring") as say:
        report = limits(asked, say)
    if as_json:
        stdout.out(report.model_dump_json(indent=2))
    else:
        for table in tables(report):
            stdout.print(table)
    told = stderr if as_json else stdout  # which holds nothing but the JSON
    if file is not None:
        write(file, report)
        told.print(f"report: {file}", soft_wrap=True, markup=False, highlight=False)
    if picture is not None:
        draw(report, picture)
        told.print(f"picture: {picture}", soft_wrap=True, markup=False, highlight=False)
