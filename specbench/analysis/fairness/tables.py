"""A fairness report as tables for a terminal of 100 columns."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from specbench.analysis.fairness.forced import marked, notes
from specbench.analysis.fairness.numbers import Change, Comparison, DrafterReport, FairnessReport
from specbench.analysis.tuning.formats import add_columns, new_table, number_of, with_interval
from specbench.results.bootstrap import Metric
from specbench.results.row import Family, ForcedNumbers, GroupNumbers, GroupSpread, MeasuredNumbers
from specbench.results.units import NULL

COLUMNS = {
    "cross_entropy": "D", "forced_acceptance_rate": "α_T", "acceptance_rate": "measured α", "speedup": "speed-up",
}  # fmt: skip
DIVERGENCES = ("cross_entropy", "kl", "unfairness")  # they count what a drafter excludes
NAMES = {
    "unfairness": "𝒰", "kl": "KL", "forced_speedup": "S_T", "mean": "mean", "variance": "variance",
    "max_over_min": "max/min", **COLUMNS,
}  # fmt: skip


def comparison_table(found: Comparison) -> Table:
    """A line per group with the differences after − before, then a line per number of all groups."""
    of_all = [*found.excluded_before.values(), *found.excluded_after.values()]
    table = new_table(
        f"{found.after} − {found.before}",
        "\n".join(
            [
                "differences after − before with 95 % intervals, paired by prompt",
                *(line(name, change, of_all) for name, change in of_family(found).items()),
                *notes({found.before: found.excluded_before, found.after: found.excluded_after}),
            ]
        ),
    )
    table.add_column("group", overflow="fold")
    add_columns(table, *(f"Δ {name}" for name in COLUMNS.values()))
    for label, changes in found.groups.items():
        masses = tuple(side.get(label, 0.0) for side in (found.excluded_before, found.excluded_after))
        table.add_row(label, *(cell(name, changes.get(name), masses) for name in COLUMNS))
    return table


def of_family(found: Comparison) -> dict[str, Change]:
    """The changes over all groups; of one group its own numbers, as nothing is unequal in it."""
    if len(found.groups) > 1:
        return found.family
    return {name.removesuffix(".mean"): change for name, change in found.family.items() if name.endswith(".mean")}


def cell(name: str, change: Change | None, excluded: Sequence[float]) -> str:
    if change is None:
        return NULL
    return marked(with_interval(change.difference, 2), *(excluded if name in DIVERGENCES else ()))


def line(name: str, change: Change, excluded: Sequence[float]) -> str:
    words = " of ".join(NAMES[part] for part in reversed(name.split(".")))
    both = " → ".join(number_of(metric, 5) for metric in (change.before, change.after))
    shown = f"{words}: {both} ({with_interval(change.percent, 1)} %)"
    return marked(shown, *(excluded if name.partition(".")[0] in DIVERGENCES else ()))


SHOWN = {
    "acceptance_rate": "measured α", "speedup": "measured speed-up", "forced_acceptance_rate": "α_T",
    "forced_speedup": "S_T",
}  # fmt: skip


def spread_lines(drafter: DrafterReport, names: tuple[str, ...]) -> list[str]:
    """A line for each number that is known; none where there is one group."""
    if len(drafter.groups) == 1:
        return []
    spreads = drafter.family.spreads
    return [f"{SHOWN[name]}: {spread_text(spreads[name])}" for name in names if name in spreads]


def spread_text(found: GroupSpread) -> str:
    return (
        f"variance {with_interval(found.variance, 5)}, max/min {with_interval(found.max_over_min, 2)}, worst "
        f"{found.worst}, best {found.best}"
    )


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


def forced_cells(found: ForcedNumbers, is_speedup: bool) -> list[str]:
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


def measured_cells(found: MeasuredNumbers, has_bleu: bool) -> list[str]:
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
    where = f"drafter {drafter.drafter or 'without a name'}, {drafter.draft_length}; run {drafter.run}"
    lines = [where, *spread_lines(drafter, ("acceptance_rate", "speedup"))]
    found = drafter.family.correlations.representation_and_measured
    if found is not None:
        lines.append(f"Spearman's ρ of representation share and α: {with_interval(found, 2)}")
    if drafter.num_texts_represented:
        texts = f"{drafter.num_texts_represented} texts behind {drafter.prompt_represented!r}, language by lingua"
        lines.append(f"rank: of {texts}; 1 is the best represented")
    if drafter.problem is not None:
        lines.append(f"no teacher-forced numbers: {drafter.problem}")
    return "\n".join(lines)


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
