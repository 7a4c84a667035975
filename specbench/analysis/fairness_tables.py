"""A fairness report as tables for a terminal of 100 columns, and as a picture."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from specbench.analysis.fairness_drafters import MARK, TINY, exclusion_notes, marked
from specbench.analysis.fairness_numbers import DrafterComparison, DrafterReport, FairnessReport, NumberChange, pinsker
from specbench.analysis.tuning_tables import add_columns, new_table, number_of, with_interval
from specbench.results.bootstrap import Metric
from specbench.results.group_numbers import Family, ForcedGroup, GroupNumbers, GroupSpread, MeasuredGroup
from specbench.results.plots import pyplot, reach, saved
from specbench.results.units import NULL

COLUMNS = {
    "cross_entropy": "D", "forced_acceptance_rate": "α_T", "acceptance_rate": "measured α", "speedup": "speed-up",
}  # fmt: skip
DIVERGENCES = ("cross_entropy", "kl", "unfairness")  # they count what a drafter excludes
NAMES = {
    "unfairness": "𝒰", "kl": "KL", "forced_speedup": "S_T", "mean": "mean", "variance": "variance",
    "max_over_min": "max/min", **COLUMNS,
}  # fmt: skip


def comparison_table(found: DrafterComparison) -> Table:
    """A line per group with the differences after − before, then a line per number of all groups."""
    of_all = [*found.excluded_before.values(), *found.excluded_after.values()]
    table = new_table(
        f"{found.after} − {found.before}",
        "\n".join(
            [
                "differences after − before with 95 % intervals, paired by prompt",
                *(line(name, change, of_all) for name, change in of_family(found).items()),
                *exclusion_notes({found.before: found.excluded_before, found.after: found.excluded_after}),
            ]
        ),
    )
    table.add_column("group", overflow="fold")
    add_columns(table, *(f"Δ {name}" for name in COLUMNS.values()))
    for label, changes in found.groups.items():
        masses = tuple(side.get(label, 0.0) for side in (found.excluded_before, found.excluded_after))
        table.add_row(label, *(cell(name, changes.get(name), masses) for name in COLUMNS))
    return table


def of_family(found: DrafterComparison) -> dict[str, NumberChange]:
    """The changes over all groups; of one group its own numbers, as nothing is unequal in it."""
    if len(found.groups) > 1:
        return found.family
    return {name.removesuffix(".mean"): change for name, change in found.family.items() if name.endswith(".mean")}


def cell(name: str, change: NumberChange | None, excluded: Sequence[float]) -> str:
    if change is None:
        return NULL
    return marked(with_interval(change.difference, 2), *(excluded if name in DIVERGENCES else ()))


def line(name: str, change: NumberChange, excluded: Sequence[float]) -> str:
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


def forced_cells(found: ForcedGroup, is_speedup: bool) -> list[str]:
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
    lines += exclusion_notes({drafter.label: family.excluded})
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


def measured_cells(found: MeasuredGroup, has_bleu: bool) -> list[str]:
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
    return "\n".join(
        [*lines, *exclusion_notes({drafter.label: drafter.family.excluded for drafter in report.drafters})]
    )


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


def draw(report: FairnessReport, path: Path) -> None:
    """Write the picture; the name of the file is checked by plots.check_plot. Raises ConfigError where it cannot be
    written."""
    num_groups = len(report.drafters[0].groups)
    width = max(12.0, 0.35 * num_groups * len(report.drafters))
    figure = pyplot().figure(figsize=(width, 9), layout="constrained")
    grid = figure.add_gridspec(2, 2)
    with saved(figure, path):
        draw_bars(figure.add_subplot(grid[0, :]), report.drafters)
        forced = [drafter for drafter in report.drafters if drafter.problem is None]
        draw_fitness(figure.add_subplot(grid[1, 0]), forced)
        draw_divergence(figure.add_subplot(grid[1, 1]), forced)


def rates(drafter: DrafterReport, is_measured: bool) -> dict[int, Metric]:
    """By the place of the group the measured acceptance rates; else α_T, of the groups that are not measured."""
    chosen = {
        place: group.measured if is_measured else group.forced
        for place, group in enumerate(drafter.groups.values())
        if is_measured == (group.measured is not None)
    }
    return {
        place: found.acceptance_rate
        for place, found in chosen.items()
        if found is not None and found.acceptance_rate.value is not None
    }


def draw_bars(axes: Any, drafters: Sequence[DrafterReport]) -> None:
    """Acceptance rate by group, a bar for each drafter, with 95 % intervals; α_T hatched, no bar without a value."""
    labels = list(drafters[0].groups)
    width = 0.8 / len(drafters)
    for number, drafter in enumerate(drafters):
        shift = (number - (len(drafters) - 1) / 2) * width
        for is_measured in (True, False):
            found = rates(drafter, is_measured)
            metrics = list(found.values())
            if metrics:
                axes.bar([place + shift for place in found], [m.value for m in metrics], width, yerr=reach(metrics),
                         capsize=2, color=f"C{number}", hatch=None if is_measured else "//", edgecolor="white",
                         label=drafter.label if is_measured else f"{drafter.label}: α_T, teacher-forced")  # fmt: skip
    axes.set_xticks(range(len(labels)), labels, rotation=45 if len(labels) > 12 else 0)
    axes.set_ylabel("acceptance rate α, 95 %")
    axes.legend(ncols=min(6, len(drafters)), frameon=False, loc="lower right", bbox_to_anchor=(1, 1))


def draw_fitness(axes: Any, drafters: Sequence[DrafterReport]) -> None:
    """α_T against the drafter's fitness 1 − r_q (figure 2)."""
    for drafter in drafters:
        found = {
            label: (1 - group.forced.draft_misfit.value, group.forced.acceptance_rate)
            for label, group in drafter.groups.items()
            if group.forced and group.forced.draft_misfit.value is not None
        }
        fitness, metrics = [x for x, _ in found.values()], [metric for _, metric in found.values()]
        heights = [metric.value for metric in metrics]
        axes.errorbar(fitness, heights, yerr=reach(metrics), fmt="o", capsize=2, label=drafter.label)
        for label, x, y in zip(found, fitness, heights, strict=True):
            axes.annotate(label, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.set_xlabel("drafter fitness 1 − r_q")
    axes.set_ylabel("α_T")


def draw_divergence(axes: Any, drafters: Sequence[DrafterReport]) -> None:
    """α_T against KL_T and D_T, with the bound 1 − √(d/2) that holds for both."""
    largest = 2.0
    for number, drafter in enumerate(drafters):
        found = [group.forced for group in drafter.groups.values() if group.forced]
        heights = [forced.acceptance_rate.value for forced in found]
        for name, marker, metrics in (("KL", "o", [f.kl for f in found]), ("D", "s", [f.cross_entropy for f in found])):
            axes.plot([m.value for m in metrics], heights, marker, color=f"C{number}",
                      label=f"{drafter.label}: {marked(name, *drafter.family.excluded.values())}",
                      fillstyle="full" if name == "KL" else "none")  # fmt: skip
            largest = max([largest, *(m.value or 0.0 for m in metrics)])
    line = np.linspace(0, largest, 200)
    axes.plot(line, [pinsker(float(d)) for d in line], color="black", linewidth=0.8, label="bound 1 − √(d/2)")
    axes.set_xlabel(f"divergence, nats ({MARK}: what the drafter excludes counts as {TINY:.1e})")
    axes.set_ylabel("α_T")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize=8)
