"""Parts of the pages with measured servers: runs that are continued, tables as Markdown, the picture of the loads."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from specbench.core.table import Table, markdown_table
from specbench.models.machine import environment
from specbench.report.captions import verdict_word
from specbench.report.columns import SPEEDUP
from specbench.report.display import draw
from specbench.report.tables import load_tables
from specbench.results.concurrency import load_groups
from specbench.results.metric_format import number, speed
from specbench.results.row import Row
from specbench.results.runs import RecordedRun, finished_run


def device_name() -> str:
    """Returns the name of this machine's CPU."""
    return str(environment("cpu", "float32", "sdpa")["device"]).rpartition(", ")[0]


def measured(words: Sequence[str], folder: Path) -> RecordedRun:
    """Runs specbench into a folder, or continues there. Returns the run."""
    print(shlex.join(["specbench", *words]), flush=True)
    subprocess.run([sys.executable, "-m", "specbench", *words, "--output", str(folder)], check=True)
    return finished_run(folder)


def single_table(served: Sequence[Row], local: Sequence[Row]) -> str:
    """Returns the table of the rows of one request at a time."""
    headings = ["task", "where", "method", "n", "tok/s of ar", "tok/s", "speed-up, 95 %", "τ", "verdict"]
    lines = []
    for task in dict.fromkeys(row.task_name for row in served):
        for where, rows in (("server", served), ("in process", local)):
            own = [row for row in rows if row.task_name == task and not row.level and row.method_name != "ar"]
            last = own[-1].subset
            lines += [
                [task, where, row.method_name, str(row.n), speed(row.metric("tokens_per_second_ar")),
                 speed(row.metric("tokens_per_second")), SPEEDUP.cell(row),
                 number(row.metric("mean_acceptance_length"), 2), verdict_word(row)]
                for row in own if row.subset == last
            ]  # fmt: skip
    return markdown_table(headings, lines)


def loads_part(rows: Sequence[Row], picture: Path) -> str:
    """Draws the picture of the loads, and returns their tables: of each task, the last subset, which has all."""
    groups = {group[0].task_name: group for group in load_groups(rows)}.values()
    draw([], picture, list(groups))
    return "\n\n".join(map(_load_part, load_tables([row for group in groups for row in group])))


def _load_part(table: Table) -> str:
    """Returns the table of one task under load, with its caption."""
    headings = [" ".join(column.heading.split()) for column in table.columns]
    lines = [row for row in table.rows if len(row) == len(headings)]
    return "\n".join(
        [f"### {table.title}", "", markdown_table(headings, lines), "", *(f"- {line}" for line in table.caption)]
    )
