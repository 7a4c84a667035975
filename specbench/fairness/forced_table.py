"""The teacher-forced numbers of a drafter, as a table."""

from rich.table import Table

from specbench.fairness.excluded import marked, notes
from specbench.fairness.numbers import DrafterReport, FairnessReport, Forced
from specbench.fairness.spread_lines import spread_lines
from specbench.tuning.formats import add_columns, new_table, number_of, with_interval


def forced_table(drafter: DrafterReport, report: FairnessReport) -> Table:
    """The teacher-forced numbers with the bounds, a line per group."""
    table = new_table(f"{drafter.label}: teacher-forced", forced_caption(drafter, report))
    table.add_column("group", overflow="fold")
    known = all(group.forced is None or group.forced.speedup for group in drafter.groups.values())
    unit = "speed-up" if known else "tok/pass"
    add_columns(table, "D\n95 % interval", "KL", "α_T\n95 % interval", f"S_T\n{unit}", "≥ of\nα_T", "≥ of\nKL",
                "≥ of\nD", "1−r_q", "1−r_p")  # fmt: skip
    for label, group in drafter.groups.items():
        if group.forced is not None:
            table.add_row(label, *forced_cells(group.forced, known))
    return table


def forced_cells(found: Forced, is_speedup: bool) -> list[str]:
    links = found.speedup if is_speedup and found.speedup else found.tokens_per_pass
    fitness = (1 - (metric.value or 0.0) for metric in (found.draft_misfit, found.target_misfit))
    return [
        marked(with_interval(found.cross_entropy, 2), found.excluded), marked(number_of(found.kl, 2), found.excluded),
        with_interval(found.acceptance_rate, 2),
        *(f"{value:.2f}" for value in (*links.model_dump().values(), *fitness)),
    ]  # fmt: skip


def forced_caption(drafter: DrafterReport, report: FairnessReport) -> str:
    source = "the target's own continuations" if report.reference == "continuation" else "the data's references"
    num_positions = sum(group.forced.num_positions for group in drafter.groups.values() if group.forced)
    cost = "not one" if drafter.cost_ratio is None else f"{drafter.cost_ratio:.3f}"
    family, lines = (
        drafter.family,
        [f"{num_positions} positions of {source}, raw distributions; c {cost}; TV = 1 − α_T"],
    )
    if family.unfairness is not None and len(drafter.groups) > 1:
        shown = marked(with_interval(family.unfairness, 4), *family.excluded.values())
        lines.append(f"unfairness 𝒰 = {shown} nats², lowest D: {family.lowest}")
    lines += spread_lines(drafter, ("forced_acceptance_rate", "forced_speedup"))
    found = family.correlations
    for name, metric in (("representation share", found.representation_and_acceptance),
                         ("fitness 1 − r_q", found.fitness_and_acceptance)):  # fmt: skip
        if metric is not None:
            lines.append(f"Spearman's ρ of {name} and α_T over groups: {with_interval(metric, 2)}")
    lines += notes({drafter.label: family.excluded})
    return "\n".join([*lines, "theorems 1 and 2 hold in every group"])
