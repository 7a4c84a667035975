"""Rows → tables for a terminal of 100 columns."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.results.captions import caption, lossless_word, sampling_of
from specbench.results.cells import NULL, number, short, speed, with_interval
from specbench.results.doubts import doubt_lines, speedup_cell
from specbench.results.drafters import drafter_kind
from specbench.results.notes import heading, notes
from specbench.results.row import Row
from specbench.results.units import pair

__all__ = [
    "NULL", "drafter_kind", "lossless_word", "number", "run_table", "sampling_of", "short", "speed", "with_interval",
]  # fmt: skip


def run_table(rows: Sequence[Row]) -> Table:
    """One task and one method: a line per subset, then "all". Raises ValueError for rows of several or of none."""
    if len({(row.task, row.method) for row in rows}) != 1:
        raise ValueError("a table shows the rows of one task and one method")
    lines = sorted(rows, key=lambda row: row.subset == "all")
    method = short(lines[0].method)
    table = Table(
        title=Text(f"{short(lines[0].task)} · {method}"),
        caption=Text("\n".join([caption(lines), *doubt_lines(lines, [row.subset for row in lines]), *notes(lines)])),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("subset", overflow="fold")
    headers = ("n", "α", "τ", "tok/s\nar", f"tok/s\n{method.partition('@')[0]}", "speed-up\n95 % interval",
               "expected\nspeed-up", f"{heading(lines)}\nar → method")  # fmt: skip
    for header in headers:
        table.add_column(header, justify="right", overflow="fold", no_wrap=not header.startswith("tok/s"))
    for row in lines:
        if row.subset == "all" and len(lines) > 1:
            table.add_section()
        table.add_row(*(Text(cell) for cell in _cells(row)))
    return table


def _cells(row: Row) -> list[str]:
    metrics = row.metrics
    return [
        row.subset,
        str(row.n),
        number(metrics.get("acceptance_rate"), 3),
        number(metrics.get("mean_acceptance_length"), 2),
        speed(metrics.get("tokens_per_second_ar")),
        speed(metrics.get("tokens_per_second")),
        speedup_cell(row),
        number(metrics.get("speedup_expected"), 2),
        pair(metrics, row.quality),
    ]
