"""All tasks of a run in one table: a line per task and method, each over all subsets of the task."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.results.cells import number, short, speed
from specbench.results.doubts import doubt_lines, speedup_cell
from specbench.results.notes import heading
from specbench.results.row import Row
from specbench.results.units import unit_of


def overview_table(groups: Sequence[Sequence[Row]]) -> Table:
    """`groups`: of each task one row per method, over all its subsets, the baseline first."""
    table = Table(
        title=Text(f"{len(groups)} tasks · all subsets"),
        caption=Text("\n".join(_caption(groups))),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("task", overflow="fold")
    table.add_column("n", justify="right")
    table.add_column("method", overflow="fold")
    for header in ("α", "τ", "tok/s", "speed-up\n95 % interval", "score"):
        table.add_column(header, justify="right", no_wrap=header != "score")
    table.add_column("of", overflow="fold")
    for rows in groups:
        for place, row in enumerate(rows):
            task = [short(row.task).partition("@")[0], str(row.n)] if place == 0 else ["", ""]
            table.add_row(*(Text(cell) for cell in (*task, *_cells(row), heading(rows) if row.quality else "")))
        table.add_section()
    return table


def _caption(groups: Sequence[Sequence[Row]]) -> list[str]:
    rows = [row for group in groups for row in group]
    names = [" ".join(short(name).partition("@")[0] for name in (row.task, row.method)) for row in rows]
    return ["α does not compare across bridges, nor a score with that of another task", *doubt_lines(rows, names)]


def _cells(row: Row) -> list[str]:
    metrics, unit = row.metrics, unit_of(row.quality)
    return [
        short(row.method).partition("@")[0],
        number(metrics.get("acceptance_rate"), 3),
        number(metrics.get("mean_acceptance_length"), 2),
        speed(metrics.get("tokens_per_second")),
        speedup_cell(row),
        number(metrics.get(row.quality or ""), unit.digits, unit.factor),
    ]
