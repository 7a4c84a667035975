"""A fairness report as tables for a terminal of 100 columns."""

from collections.abc import Iterator

from rich.table import Table

from specbench.fairness.comparison_table import comparison_table
from specbench.fairness.forced_table import forced_table
from specbench.fairness.measured_table import measured_table
from specbench.fairness.numbers import FairnessReport, GroupNumbers
from specbench.results.cells import NULL
from specbench.tuning.formats import add_columns, new_table, number_of, with_interval


def tables(report: FairnessReport) -> Iterator[Table]:
    """Every drafter's measured and teacher-forced numbers, all drafters side by side, and what a change changed."""
    for drafter in report.drafters:
        if drafter.method is not None:
            yield measured_table(drafter)
        if drafter.problem is None:
            yield forced_table(drafter, report)
    if len(report.drafters) > 1:
        yield overview(report)
    if report.comparison is not None:
        yield comparison_table(report.comparison)


def overview(report: FairnessReport) -> Table:
    """Groups by drafters: α, D and speed-up, with 𝒰 at the bottom."""
    table = new_table(
        "all drafters",
        "α · D · speed-up: α and speed-up measured where a run has them, else α_T and –; D teacher-forced",
    )
    table.add_column("group", overflow="fold")
    add_columns(table, *(f"{drafter.label}\nα · D · ×" for drafter in report.drafters))
    for label in report.drafters[0].groups:
        table.add_row(label, *(overview_cell(drafter.groups[label]) for drafter in report.drafters))
    table.add_section()
    families = [drafter.family for drafter in report.drafters]
    table.add_row("𝒰", *(NULL if f.unfairness is None else with_interval(f.unfairness, 3) for f in families))
    return table


def overview_cell(group: GroupNumbers) -> str:
    rate = group.measured.acceptance_rate if group.measured else group.forced.acceptance_rate if group.forced else None
    values = (
        (rate, 2),
        (group.forced.cross_entropy if group.forced else None, 2),
        (group.measured.speedup if group.measured else None, 2),
    )
    return " · ".join(NULL if metric is None else number_of(metric, digits) for metric, digits in values)
