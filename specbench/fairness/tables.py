"""A fairness report as tables for a terminal of 100 columns."""

from collections.abc import Iterator

from rich.table import Table

from specbench.fairness.comparison_table import comparison_table
from specbench.fairness.numbers import DrafterReport, FairnessReport, Forced, GroupNumbers, Measured, Spread
from specbench.results.bootstrap import Metric
from specbench.results.cells import NULL
from specbench.tuning.formats import add_columns, new_table, number_of, with_interval

SHOWN = {
    "acceptance_rate": "measured α", "speedup": "measured speed-up", "forced_acceptance_rate": "α_T",
    "forced_speedup": "S_T",
}  # fmt: skip


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


def measured_table(drafter: DrafterReport) -> Table:
    """What runs measured, a line per group."""
    groups = drafter.groups
    has_bleu = any(group.measured and group.measured.bleu for group in groups.values())
    has_rank = any(group.representation_rank for group in groups.values())
    headers = ["n", "α\n95 % interval", "τ", "speed-up\n95 % interval"]
    headers += ["BLEU", "α·BLEU\n95 % interval"] * has_bleu + ["rank", "share %"] * has_rank
    table = new_table(f"{drafter.label}: measured", measured_caption(drafter))
    table.add_column("group", overflow="fold")
    add_columns(table, *headers)
    for label, group in groups.items():
        assert group.measured is not None
        cells = [label, str(group.num_prompts), *measured_cells(group.measured, has_bleu)]
        table.add_row(*cells, *rank_cells(group) if has_rank else ())
    return table


def measured_cells(found: Measured, has_bleu: bool) -> list[str]:
    cells = [
        with_interval(found.acceptance_rate, 3), number_of(found.mean_acceptance_length, 2),
        with_interval(found.speedup, 2),
    ]  # fmt: skip
    if has_bleu:
        cells += [number_of(found.bleu or Metric(), 1), with_interval(found.adjusted_acceptance or Metric(), 1)]
    return cells


def rank_cells(group: GroupNumbers) -> tuple[str, str]:
    if group.representation_rank is None or group.representation_share is None:
        return NULL, NULL
    return str(group.representation_rank), f"{100 * group.representation_share:.1f}"


def measured_caption(drafter: DrafterReport) -> str:
    where = f"drafter {drafter.drafter or 'without a name'}, {drafter.num_draft_tokens} draft tokens; run {drafter.run}"
    lines = [where, *spread_lines(drafter, ("acceptance_rate", "speedup"))]
    found = drafter.family.correlations.representation_and_measured
    if found is not None:
        lines.append(f"Spearman's ρ of representation rank and α: {with_interval(found, 2)}")
    if drafter.num_texts_represented:
        lines.append(f"rank: of {drafter.num_texts_represented} texts on an empty prompt; 1 is the best represented")
    if drafter.problem is not None:
        lines.append(f"no teacher-forced numbers: {drafter.problem}")
    return "\n".join(lines)


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
        with_interval(found.cross_entropy, 2), number_of(found.kl, 2), with_interval(found.acceptance_rate, 2),
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
    if family.unfairness is not None:
        lines.append(f"unfairness 𝒰 = {with_interval(family.unfairness, 4)} nats², lowest D: {family.lowest}")
    lines += spread_lines(drafter, ("forced_acceptance_rate", "forced_speedup"))
    found = family.correlations
    for name, metric in (("representation rank", found.representation_and_acceptance),
                         ("fitness 1 − r_q", found.fitness_and_acceptance)):  # fmt: skip
        if metric is not None:
            lines.append(f"Spearman's ρ of {name} and α_T over groups: {with_interval(metric, 2)}")
    excluded = max((group.forced.excluded for group in drafter.groups.values() if group.forced), default=0.0)
    if excluded > 0:
        lines.append(
            f"the drafter excludes up to {excluded:.1%} of what the target allows: D and KL count it as 1.2e-38"
        )
    return "\n".join([*lines, "theorems 1 and 2 hold in every group"])


def spread_lines(drafter: DrafterReport, names: tuple[str, ...]) -> list[str]:
    spreads = drafter.family.spreads
    return [f"{SHOWN[name]}: {spread_text(spreads[name])}" for name in names if name in spreads]


def spread_text(found: Spread) -> str:
    return (
        f"variance {with_interval(found.variance, 5)}, max/min {with_interval(found.max_over_min, 2)}, worst "
        f"{found.worst}, best {found.best}"
    )


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
