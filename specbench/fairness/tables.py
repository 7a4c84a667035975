"""A fairness report as tables for a terminal of 100 columns."""

from collections.abc import Iterator

from rich.table import Table

from specbench.fairness.comparison_table import comparison_table
from specbench.fairness.excluded import marked, notes
from specbench.fairness.forced_table import forced_table
from specbench.fairness.measured_table import measured_table
from specbench.fairness.numbers import FairnessReport, Family, GroupNumbers
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
    families = {drafter.label: drafter.family for drafter in report.drafters}
    caption = "α · D · speed-up: α and speed-up measured where a run has them, else α_T and –; D teacher-forced"
    excluded = notes({label: family.excluded for label, family in families.items()})
    table = new_table("all drafters", "\n".join([caption, *excluded]))
    table.add_column("group", overflow="fold")
    add_columns(table, *(f"{drafter.label}\nα · D · ×" for drafter in report.drafters))
    for label in report.drafters[0].groups:
        table.add_row(label, *(overview_cell(drafter.groups[label]) for drafter in report.drafters))
    table.add_section()
    table.add_row("𝒰", *(unfairness_cell(family) for family in families.values()))
    return table


def unfairness_cell(family: Family) -> str:
    if family.unfairness is None:
        return NULL
    return marked(with_interval(family.unfairness, 3), *family.excluded.values())


def overview_cell(group: GroupNumbers) -> str:
    rate = group.measured.acceptance_rate if group.measured else group.forced.acceptance_rate if group.forced else None
    divergence = marked(number_of(group.forced.cross_entropy, 2), group.forced.excluded) if group.forced else NULL
    speedup = group.measured.speedup if group.measured else None
    shown = [NULL if metric is None else number_of(metric, 2) for metric in (rate, speedup)]
    return " · ".join([shown[0], divergence, shown[1]])
