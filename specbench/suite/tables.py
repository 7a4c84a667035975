"""A suite as tables: its cells before it starts, its rows afterwards."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from specbench.boards.tables import add, over_all, plain_table
from specbench.results.captions import FEW, rests_on_few
from specbench.results.cells import NULL, number, short, speed
from specbench.results.doubts import doubt_lines, speedup_cell
from specbench.results.row import Row
from specbench.results.units import unit_of
from specbench.suite.cells import Cell
from specbench.suite.forecast import Forecast, Planned, cells_in, shown


def cells_table(forecast: Forecast) -> Table:
    """Every cell with its methods, what it has already, and how long it takes."""
    suite = forecast.plan[0].cell.suite
    title = f"{suite.name} · {cells_in(forecast)}"
    table = plain_table(title, "pair", "task", "setting", "methods", "examples", "estimated time", "at most")
    for planned in forecast.plan:
        cell, estimate = planned.cell, forecast.of(planned)
        times = (shown(estimate.seconds), shown(estimate.most)) if estimate else ("unknown", "unknown")
        done = f"{min(planned.num_done, planned.num_blocks)}/{planned.num_blocks}" if planned.subsets else NULL
        times = ("measured already", "") if planned.is_measured else times
        methods = ", ".join(planned.methods[1:] or planned.methods)
        add(table, cell.pair_name, cell.task.called, cell.setting, methods, done, *times)
    return table


def problems(forecast: Forecast) -> list[str]:
    """A line for each reason why cells cannot be measured, with the first of them and how many more have it."""
    names: dict[str, list[str]] = {}
    for planned in forecast.plan:
        if planned.problem is not None and not planned.is_measured:
            names.setdefault(planned.problem, []).append(planned.cell.name)
    return [f"{first}{f' and {len(more)} more' if more else ''}: {why}" for why, (first, *more) in names.items()]


def rows_table(measured: Sequence[tuple[Cell, Sequence[Row]]], plan: Sequence[Planned]) -> Table:
    """A line per cell and method, each over all subsets; what all cells have in common is said once, below."""
    order = {planned.cell.name: number for number, planned in enumerate(plan)}
    measured = sorted(measured, key=lambda each: order[each[0].name])
    cells = [cell for cell, _ in measured]
    axes = {
        "pair": [cell.pair_name for cell in cells],
        "task": [cell.task.called for cell in cells],
        "T": [NULL if cell.temperature is None else f"{cell.temperature:g}" for cell in cells],
        "seed": [str(cell.seed) for cell in cells],
    }
    varying = [name for name, values in axes.items() if len(set(values)) > 1]
    table = plain_table(f"{cells[0].suite.name} · all subsets", *varying)
    table.add_column("n", justify="right")
    table.add_column("method", overflow="fold")
    for header in ("α", "τ", "tok/s", "speed-up\n95 % interval", "score"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("of", overflow="fold")
    for place, (_, rows) in enumerate(measured):
        first = [axes[name][place] for name in varying]
        for line, row in enumerate(over_all(rows)):
            add(table, *(first if line == 0 else [""] * len(first)), *_cells(row))
        table.add_section()
    same = [f"{name} {values[0]}" for name, values in axes.items() if name not in varying and values[0] != NULL]
    table.caption, table.caption_justify = Text("\n".join([", ".join(same), *_doubts(measured)])), "left"
    return table


def _doubts(measured: Sequence[tuple[Cell, Sequence[Row]]]) -> list[str]:
    """Below the table: cells with few prompts, and what the marks of speed-ups stand for."""
    rows = [(cell, row) for cell, found in measured for row in over_all(found)]
    names = [f"{cell.name} {short(row.method).partition('@')[0]}" for cell, row in rows]
    few = sum(any(map(rests_on_few, over_all(found))) for _, found in measured)
    line = f"{FEW} in {few} of {len(measured)} cells"
    return [*([line] if few else []), *doubt_lines([row for _, row in rows], names)]


def _cells(row: Row) -> list[str]:
    metrics, unit = row.metrics, unit_of(row.quality)
    return [
        str(row.n),
        short(row.method).partition("@")[0],
        number(metrics.get("acceptance_rate"), 3),
        number(metrics.get("mean_acceptance_length"), 2),
        speed(metrics.get("tokens_per_second")),
        speedup_cell(row),
        number(metrics.get(row.quality or ""), unit.digits, unit.factor),
        unit.label if row.quality in metrics else "",
    ]
