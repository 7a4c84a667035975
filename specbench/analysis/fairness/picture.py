"""A fairness report as pictures: rates by group, acceptance against fitness, and divergence against acceptance."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specbench.analysis.fairness.forced import MARK, TINY, marked
from specbench.analysis.fairness.numbers import DrafterReport, FairnessReport, pinsker
from specbench.results.bootstrap import Metric
from specbench.results.plots import pyplot, reach, saved


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
