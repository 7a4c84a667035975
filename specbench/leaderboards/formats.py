"""Ranked tables as text for a terminal, as Markdown and as LaTeX."""

from collections.abc import Callable

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.leaderboards.latex import latex
from specbench.leaderboards.ranked_table import RankedTable, without_numbers
from specbench.results.markdown import escaped, table

Format = Callable[[RankedTable], Table | str]


def text(ranked: RankedTable) -> Table:
    found = Table(
        title=Text(ranked.title), caption=Text("\n".join(ranked.caption)), caption_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    for column in ranked.columns:
        heading = column.heading if "\n" in column.heading else column.heading.replace(" ", "\n")
        justify, header = ("right", heading) if column.is_number else ("left", column.heading)
        found.add_column(header, justify=justify, overflow="fold", no_wrap=not column.folds)  # type: ignore[arg-type]
    for cells in ranked.cells:
        found.add_row(*map(Text, cells))
    return found


def markdown(ranked: RankedTable) -> str:
    """A heading, the table with the best value in bold where it is separable, and the conditions as a list."""
    ranked = without_numbers(ranked)
    headers = [column.heading.replace("\n", " ") for column in ranked.columns]
    rows = [[escaped(cell) for cell in cells] for cells in ranked.cells]
    if ranked.best is not None:
        row, column = ranked.best
        rows[row][column] = f"**{rows[row][column]}**"
    made = table(list(map(escaped, headers)), rows, [column.is_number for column in ranked.columns])
    notes = "\n".join(f"- {escaped(line)}" for line in ranked.caption)
    return f"### {escaped(ranked.title)}\n\n{made}\n\n{notes}\n"


FORMATS: dict[str, Format] = {"text": text, "markdown": markdown, "latex": latex}
