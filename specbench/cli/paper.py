"""`specbench plot` and `specbench table`: figures and tables for a paper."""

import os
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import Format, flag, one_of, path_option, split
from specbench.core.console import stdout
from specbench.core.progress import status_line

Sources = Annotated[
    list[Path], typer.Argument(metavar="RUN-OR-BOARD...", help="Folders of runs or sweeps, or leaderboard files.")
]
Tasks = Annotated[str | None, typer.Option(help="Tasks in this order, separated by commas; by default all.")]
Methods = Annotated[str | None, typer.Option(help="Methods in this order, separated by commas; by default all.")]
Subsets = Annotated[
    str | None, typer.Option(help="Subsets, separated by commas; by default the rows over all of them.")
]
Filters = Annotated[list[str] | None, typer.Option("--filter", help="KEY=VALUE that rows must have: seed=0")]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", help="KEY=TEXT: another name for a task, method or model; may be repeated."),
]


def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, positions, costs, frontier, load, map, languages, or sweep.",
            autocompletion=one_of("specbench.publish.paper.figures:KINDS"),
        ),
    ],
    sources: Sources,
    output: Annotated[Path, path_option(help="File of the figure, such as speed.pdf; its data go to speed.csv.")],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="pdf, svg, pgf or png; by default the suffix of --output.",
            autocompletion=one_of("specbench.publish.paper.render:FORMATS"),
        ),
    ] = None,
    width: Annotated[
        str, typer.Option(help="column (3.25 in), text (5.5 in), page (6.75 in), or inches, such as 3.03.")
    ] = "column",
    height: Annotated[
        float | None, typer.Option(min=0.5, max=20, help="Height in inches; by default to fit the panels.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="What is drawn: for methods, languages, load and sweep a metric of rows (default speedup)."),
    ] = None,
    task: Tasks = None,
    method: Methods = None,
    subset: Subsets = None,
    filter_: Filters = None,
    name: Names = None,
) -> None:
    """Draw a figure for a paper. Beside it a CSV file has exactly what is drawn, with intervals and n.

    methods: a metric of all methods, by task. positions: acceptance by draft position (--metric conditional or
    unconditional). costs: target passes by their number of tokens (v), and draft cost c; also of reports of
    `roofline --output`. frontier: score and memory against speed. load: served runs by requests at once. map: their
    speed-ups by requests at once and tokens of context. languages: by subset. sweep: by the conditions of `run
    --sweep`, seeds pooled.

    positions and costs need the records of runs, in the folders that a leaderboard file names, or given as RUN.

    The caption is printed: what is drawn, under which conditions, and what each † warns of.

    Colours are Okabe and Ito's, with markers for print in grey. Fonts are embedded. The same input gives the same file.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for numpy: its products are too small for threads
    from specbench.publish.paper.figures import read_drawing
    from specbench.publish.paper.render import check_figure, format_of, width_of, write_figure
    from specbench.publish.paper.rows import Selection

    selection = Selection.of(split(task or ""), split(method or ""), split(subset or ""), filter_ or [], name or [])
    inches, chosen = width_of(width), format_of(output, format_)
    file = output if output.suffix.lower() == f".{chosen}" else output.with_name(f"{output.name}.{chosen}")
    check_figure(file)
    with status_line("reading the rows"):
        drawing = read_drawing(kind, sources, selection, metric)
    with status_line("drawing"):
        data = write_figure(drawing, file, chosen, inches, height)
    for line in (f"{file}, {data}", *drawing.caption):
        stdout.print(line, soft_wrap=True)


def table(
    sources: Sources,
    metric: Annotated[
        str, typer.Option(help="Metrics of each task, separated by commas.")
    ] = "speedup,mean_acceptance_length",
    format_: Format = "text",
    siunitx: Annotated[bool, flag("--siunitx", help="With latex: number columns S of the package siunitx.")] = False,
    wide: Annotated[bool, flag("--wide", help="With latex: a table over both columns of a page (table*).")] = False,
    label: Annotated[str, typer.Option(help="With latex: the label after tab: (default results).")] = "",
    task: Tasks = None,
    method: Methods = None,
    subset: Subsets = None,
    filter_: Filters = None,
    name: Names = None,
) -> None:
    """Print one table of several tasks: a row for each method, and a group of columns for each task.

    A value is bold where its paired interval separates it from all others in its column.

    The folder of a sweep (`run --sweep`) gives a table of each task: a row for each point and method, seeds pooled,
    with paired changes since the first point.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from specbench.core.table import TableFormat
    from specbench.publish.paper.rows import Selection, read_rows
    from specbench.publish.paper.table import paper_table, sweep_tables
    from specbench.results.sweeps import is_sweep

    as_text = TableFormat(format_, label or "results" * (format_ == "latex"), siunitx=siunitx, wide=wide)
    selection = Selection.of(split(task or ""), split(method or ""), split(subset or ""), filter_ or [], name or [])
    with status_line("reading the records"):
        rows = read_rows(sources, selection)
        made = sweep_tables(rows, split(metric)) if all(map(is_sweep, sources)) else [paper_table(rows, split(metric))]
    for each in made:
        shown = as_text(each)
        stdout.print(shown, soft_wrap=isinstance(shown, str))
