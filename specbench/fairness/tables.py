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

FORCED = "ᵀ"  # marks an α_T beside measured α


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
    """Groups by drafters: α, D and speed-up, with 𝒰 of several groups at the bottom."""
    table = new_table("all drafters", overview_caption(report))
    table.add_column("group", overflow="fold")
    for drafter in report.drafters:
        add_columns(table, f"{drafter.label}\n{'α_T' if drafter.method is None else 'α'} · D · ×")
    groups = report.drafters[0].groups
    for label in groups:
        table.add_row(label, *(overview_cell(drafter.groups[label]) for drafter in report.drafters))
    if len(groups) > 1:
        table.add_section()
        table.add_row("𝒰", *(unfairness_cell(drafter.family) for drafter in report.drafters))
    return table


def overview_caption(report: FairnessReport) -> str:
    lines = ["α · D · speed-up: α and speed-up as a run measured them; D teacher-forced"]
    if any(drafter.method is None for drafter in report.drafters):
        lines.append(
            f"{FORCED}: no run measured this drafter: its teacher-forced α_T, which compares with the α_T of the "
            "tables above and not with a measured α; no speed-up"
        )
    return "\n".join([*lines, *notes({drafter.label: drafter.family.excluded for drafter in report.drafters})])


def unfairness_cell(family: Family) -> str:
    if family.unfairness is None:
        return NULL
    return marked(with_interval(family.unfairness, 3), *family.excluded.values())


def overview_cell(group: GroupNumbers) -> str:
    rate, divergence, speedup = NULL, NULL, NULL
    if group.forced:
        rate = f"{number_of(group.forced.acceptance_rate, 2)}{FORCED}"
        divergence = marked(number_of(group.forced.cross_entropy, 2), group.forced.excluded)
    if group.measured:
        rate, speedup = (number_of(each, 2) for each in (group.measured.acceptance_rate, group.measured.speedup))
    return " · ".join([rate, divergence, speedup])
