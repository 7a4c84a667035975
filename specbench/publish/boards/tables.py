"""The boards as a table, and of one board what we measured."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.publish.boards.catalogue import board_names, read_board
from specbench.publish.boards.measured import ALL, Measured
from specbench.publish.boards.spec import QUALITY
from specbench.publish.measurement import Outcome
from specbench.results.captions import FEW, computed_on, prescribed, rests_on_few, verdict_word
from specbench.results.row import Row
from specbench.results.tables import speedup_cell, warning_lines
from specbench.results.units import NULL, number, speed, unit_of

NOT_MEASURED = "not measured"
HEADINGS = {"acceptance_rate": "α", "mean_acceptance_length": "τ", "cost_ratio": "c", "tokens_per_second": "tok/s",
            "speedup": "speed-up\n95 % interval", "speedup_expected": "expected speed-up"}  # fmt: skip


def boards_table() -> Table:
    """name, title, paper, pairs, runs, published tables."""
    table = plain_table("boards", "name", "title", "paper", "pairs", "runs", "published")
    for board in map(read_board, board_names()):
        numbers = ", ".join(each.reference for each in board.published) or NULL
        pairs = ", ".join(board.pairs) if len(board.pairs) < 5 else f"{len(board.pairs)} pairs"
        add(table, board.name, board.title, board.paper or NULL, pairs, str(len(board.runs)), numbers)
    return table


def nothing_measured(measured: Measured, name: str) -> Text:
    """What takes the place of a table without rows. `name`: of the board, as it was given."""
    runs = ", ".join(measured.rows)
    command = f"specbench board run {name} --pair {measured.pair_name}"
    return Text(f"{measured.board.name} · {measured.pair_name}: nothing of it is measured ({runs}): {command}\n")


def own_table(measured: Measured) -> Table:
    """Every method of every run over all its subsets, with the board's columns; times are seconds."""
    board = measured.board
    table = plain_table(f"{board.name} · {measured.pair_name} · ours", "run", "n", "method", "verdict")
    for metric in board.columns:
        table.add_column(HEADINGS.get(metric, metric.replace("_", " ")), justify="right", overflow="fold")
        if metric == QUALITY:
            table.add_column("of", overflow="fold")
    for run, rows in measured.rows.items():
        for place, row in enumerate(over_all(rows)):
            first = [run, str(row.n)] if place == 0 else ["", ""]
            cells = [cell for metric in board.columns for cell in _own(row, metric)]
            add(table, *first, row.method_name, verdict_word(row), *cells)
        if rows:
            table.add_section()
    table.caption = Text("\n".join(_conditions(measured)))
    table.caption_justify = "left"
    return table


def over_all(rows: Sequence[Row]) -> list[Row]:
    """Of every task and method the row over all its subsets, or the only one."""
    return list({(row.task, row.method): row for row in sorted(rows, key=lambda row: row.subset == ALL)}.values())


def _own(row: Row, metric: str) -> list[str]:
    """The cell of a metric; of the main score also its name."""
    if metric == QUALITY:
        unit = unit_of(row.quality)
        label = unit.label if row.quality in row.metrics else ""
        return [number(row.metrics.get(str(row.quality)), unit.digits, unit.factor), label]
    found = row.metrics.get(metric)
    if metric == "speedup":
        return [speedup_cell(row)]
    return [speed(found) if metric == "tokens_per_second" else number(found, 3)]


def _conditions(measured: Measured) -> list[str]:
    """On what, of what and when: every value that the rows have; and the runs that have none."""
    rows = [row for rows in measured.rows.values() for row in rows]
    values: dict[str, set[str]] = {
        "target": {row.target for row in rows},
        "on": {computed_on(row) for row in rows},
        "data": {str(row.data_source) for row in rows},
        "measured": {row.created[:10] for row in rows},
        NOT_MEASURED: {run for run, found in measured.rows.items() if not found},
    }
    few = sorted(run for run, found in measured.rows.items() if any(map(rests_on_few, over_all(found))))
    return [
        *(f"{name}: {', '.join(sorted(found))}" for name, found in values.items() if found),
        *([f"{FEW} in {', '.join(few)}"] if few else []),
        *_doubts(measured),
        *sorted({f"{row.method.partition('@')[0]} ranks with none: {why}" for row in rows if (why := prescribed(row))}),
        *measured.outdated,
    ]


def _doubts(measured: Measured) -> list[str]:
    rows = [(row, f"{run} {row.method.partition('@')[0]}")
            for run, found in measured.rows.items() for row in over_all(found)]  # fmt: skip
    return warning_lines([row for row, _ in rows], [name for _, name in rows])


def outcomes_table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """What became of every cell, the failures with their reasons last."""
    table = plain_table(title, "run", "", "folder or reason")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.failure is not None):
        state = "measured already" if outcome.was_measured else "measured"
        shown = (state, str(outcome.folder)) if outcome.failure is None else ("FAILED", outcome.failure)
        add(table, outcome.name, *shown)
    return table


def plain_table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def add(table: Table, *cells: str) -> None:
    table.add_row(*map(Text, cells))
