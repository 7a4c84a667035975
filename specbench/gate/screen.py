"""The report on a terminal of 100 columns."""

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from specbench.gate.findings import Compared, Report
from specbench.gate.lines import HEADERS, cells, headline, sections


def screen(report: Report) -> Iterator[RenderableType]:
    """A table for each task, and the reasons."""
    yield Text(headline(report))
    for task in dict.fromkeys(each.task for each in report.compared):
        yield _table(task, [each for each in report.compared if each.task == task])
    for heading, lines in sections(report):
        yield Text(f"{heading}:")
        yield Text("\n".join(f"  {line}" for line in lines))


def _table(task: str, compared: list[Compared]) -> Table:
    table = Table(title=Text(f"{task}: baseline → candidate"), box=box.SIMPLE_HEAD, pad_edge=False,
                  collapse_padding=True)  # fmt: skip
    for header in HEADERS:
        table.add_column(header, justify="left" if header in ("method", "result") else "right", overflow="fold")
    for each in compared:
        table.add_row(*(Text(cell) for cell in cells(each)))
    return table
