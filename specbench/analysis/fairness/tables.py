"""A fairness report as tables for a terminal of 100 columns, and as a picture."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from specbench.analysis.fairness.drafters import TINY
from specbench.analysis.fairness.fairness import DrafterComparison, DrafterReport, FairnessReport
from specbench.analysis.fairness.groups import DIVERGENCES, NUMBERS, pinsker
from specbench.core.table import Table, number_columns, text_columns
from specbench.report.display import reach, save_picture
from specbench.results.metric_format import NULL, number, with_interval

COMPARED = ("cross_entropy", "forced_acceptance_rate", "acceptance_rate", "speedup")  # in the table of two drafters
STATISTIC_NAMES = {"mean": "mean", "variance": "variance", "max_over_min": "max/min"}
UNFAIRNESS = "unfairness (𝒰)"


def tables(report: FairnessReport) -> Iterator[Table]:
    for drafter in report.drafters:
        if drafter.method is not None:
            yield measured_table(drafter)
        if drafter.problem is None:
            yield from (forced_table(drafter, report), bounds_table(drafter))
    if report.comparison is not None:
        yield comparison_table(report.comparison)


MARK = "*"
MIN_MASS = 1e-6  # of the target: a smaller mass adds less than 1e-4 nats


def add_mark(text: str, *masses: float) -> str:
    return text + MARK * any(mass >= MIN_MASS for mass in masses)


def exclusion_notes(masses: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the lines of a caption that explain the mark; empty if nothing is marked. `masses`: the target's mean
    mass on excluded tokens, by drafter and group."""
    lines = []
    for drafter, found in masses.items():
        shown = {group: f"{100 * mass:.2g} %" for group, mass in found.items() if mass >= MIN_MASS}
        if shown:
            lines.append(f"{drafter} excludes {', '.join(f'{mass} in {group}' for group, mass in shown.items())}")
    meaning = (
        f"{MARK} by convention, a token to which the drafter gives no probability counts as {TINY:.1e}, which adds "
        f"{-math.log(TINY) / 100:.2f} nats for each % of the target's mass on such tokens; the exact D and KL are "
        "infinite"
    )
    return [meaning, *lines] if lines else []


def comparison_table(found: DrafterComparison) -> Table:
    sides = {found.before: found.excluded_before, found.after: found.excluded_after}
    rows = []
    for label, changes in found.groups.items():
        row = [label]
        for name in COMPARED:
            masses = [side.get(label, 0.0) for side in sides.values()] if name in DIVERGENCES else []
            change = changes.get(name)
            row.append(add_mark(with_interval(change.difference, 2), *masses) if change else NULL)
        rows.append(row)
    caption = ["differences after − before with 95 % intervals, paired by prompt"]
    all_masses = [mass for side in sides.values() for mass in side.values()]
    for key, each in found.family.items():
        name, _, statistic = key.partition(".")
        if len(found.groups) == 1 and statistic != "mean":
            continue  # a single group has no spread
        label = NUMBERS[name].label if statistic else UNFAIRNESS
        subject = f"{STATISTIC_NAMES[statistic]} of {label}" if statistic and len(found.groups) > 1 else label
        line = f"{subject}: {number(each.before, 5)} → {number(each.after, 5)} ({with_interval(each.percent, 1)} %)"
        caption.append(add_mark(line, *(all_masses if name in ("unfairness", *DIVERGENCES) else ())))
    caption += exclusion_notes(sides)
    headings = (NUMBERS[name].label.replace(" (", "\n(") for name in COMPARED)
    columns = text_columns("group") + number_columns(*headings)
    return Table(f"{found.after} − {found.before}", columns, rows, caption)


def _spread_lines(drafter: DrafterReport, names: tuple[str, ...]) -> list[str]:
    spreads = drafter.family.spreads if len(drafter.groups) > 1 else {}
    return [
        f"{NUMBERS[name].label}: variance {with_interval(found.variance, 5)}, max/min "
        f"{with_interval(found.max_over_min, 2)}, worst {found.worst}, best {found.best}"
        for name in names
        if (found := spreads.get(name))
    ]


def forced_table(drafter: DrafterReport, report: FairnessReport) -> Table:
    rows = []
    for label, group in drafter.groups.items():
        if found := group.forced:
            fitness = (1 - (metric.value or 0.0) for metric in (found.draft_misfit, found.target_misfit))
            rows.append([
                label, add_mark(with_interval(found.cross_entropy, 2), found.excluded),
                add_mark(number(found.token_loss, 2), found.excluded) if found.token_loss else NULL,
                add_mark(number(found.kl, 2), found.excluded), with_interval(found.acceptance_rate, 2),
                " · ".join(f"{value:.2f}" for value in fitness),
            ])  # fmt: skip
    columns = text_columns("group") + number_columns(
        "cross-entropy\n(D)", "tokens'\nloss\n(−log q)", "divergence\n(KL)", "acceptance\nrate (α_T)",
        "fit of q · p\n(1−r)",
    )  # fmt: skip
    source = "the target's own continuations" if report.reference == "continuation" else "the data's references"
    num_positions = sum(group.forced.num_positions for group in drafter.groups.values() if group.forced)
    cost = "not one" if drafter.cost_ratio is None else f"{drafter.cost_ratio:.3f}"
    family = drafter.family
    caption = [
        f"{num_positions} positions of {source}, probabilities without temperature and truncation; draft cost c {cost}",
        "cross-entropy: Σ −p log q over the target's distribution p and the drafter's q; tokens' loss: −log q of the "
        "texts' tokens alone; divergence: of drafter and target; all in nats; total variation: 1 − acceptance rate",
        "fit: probability that the drafter (q) and the target (p) give to the tokens of the texts",
    ]
    if family.unfairness is not None and len(drafter.groups) > 1:
        unfairness = add_mark(with_interval(family.unfairness, 4), *family.excluded.values())
        caption.append(
            f"unfairness (𝒰): {unfairness}, the mean squared distance of the groups' cross-entropies from the lowest, "
            f"which {family.lowest} has"
        )
    caption += _spread_lines(drafter, ("forced_acceptance_rate",))
    for name, metric in (("representation share", family.correlations.representation_and_acceptance),
                         ("drafter's fit", family.correlations.fitness_and_acceptance)):  # fmt: skip
        if metric is not None:
            shown = with_interval(metric, 2)
            caption.append(f"rank correlation (ρ) of {name} and acceptance rate over groups: {shown}")
    caption += exclusion_notes({drafter.label: family.excluded})
    return Table(f"{drafter.label}: teacher-forced", columns, rows, caption)


def bounds_table(drafter: DrafterReport) -> Table:
    """Returns the expected speed-up with its bounds, a line per group. Without a draft cost, tokens per pass replace
    it."""
    forced = {label: group.forced for label, group in drafter.groups.items() if group.forced}
    speedups = {label: found.speedup for label, found in forced.items() if found.speedup}
    what = "speed-up" if len(speedups) == len(forced) else "tokens per pass"
    chains = speedups if what == "speed-up" else {label: found.tokens_per_pass for label, found in forced.items()}
    rows = [[label, *(f"{value:.2f}" for _, value in chain)] for label, chain in chains.items()]
    columns = text_columns("group") + number_columns(
        "expected\n(S_T)", "at least, by\nacceptance\nrate (α_T)", "at least, by\ndivergence\n(KL)",
        "at least, by\ncross-entropy\n(D)",
    )  # fmt: skip
    caption = [
        f"at least: the lower bound of the expected {what} that follows from the acceptance rate, the divergence "
        "or the cross-entropy alone",
        *_spread_lines(drafter, ("forced_speedup",)),
        "checked in every group: these bounds, and that acceptance rate and drafter's fit differ by at most 1 − the "
        "target's fit (theorems 1 and 2 of arXiv:2510.02128)",
    ]
    return Table(f"{drafter.label}: expected {what}", columns, rows, caption)


def measured_table(drafter: DrafterReport) -> Table:
    groups = drafter.groups
    has_bleu = any(group.measured and group.measured.bleu for group in groups.values())
    has_rank = any(group.representation_rank for group in groups.values())
    rows = []
    for label, group in groups.items():
        found, rank, share = group.measured, group.representation_rank, group.representation_share
        assert found is not None
        cells = [
            label, str(group.num_prompts), with_interval(found.acceptance_rate, 3),
            number(found.mean_acceptance_length, 2), with_interval(found.speedup, 2),
        ]  # fmt: skip
        cells += [number(found.bleu, 1), with_interval(found.adjusted_acceptance, 1)] * has_bleu
        ranked = [NULL, NULL] if rank is None or share is None else [str(rank), f"{100 * share:.1f}"]
        rows.append(cells + ranked * has_rank)
    headings = ["prompts", "acceptance\nrate α", "tokens per\npass τ", "speed-up\n95 % interval"]
    headings += ["BLEU", "α·BLEU"] * has_bleu + ["rank of the\nlanguage", "% of the\ntexts"] * has_rank
    columns = text_columns("group") + number_columns(*headings)
    caption = [f"drafter {drafter.drafter or 'without a name'}, {drafter.draft_length}; run {drafter.run}"]
    caption += _spread_lines(drafter, ("acceptance_rate", "speedup"))
    correlation = drafter.family.correlations.representation_and_measured
    if correlation is not None:
        shown = with_interval(correlation, 2)
        caption.append(f"rank correlation (ρ) of representation share and acceptance rate: {shown}")
    if drafter.num_texts_represented:
        texts = f"{drafter.num_texts_represented} texts after {drafter.prompt_represented!r}, identified by lingua"
        caption.append(f"rank of the language in {texts}; 1: the drafter writes it most often")
    if drafter.problem is not None:
        caption.append(f"no teacher-forced numbers: {drafter.problem}")
    return Table(f"{drafter.label}: measured", columns, rows, caption)


def draw_fairness(report: FairnessReport, path: Path) -> None:
    """Draws acceptance rates by group, and α_T over the divergence from the target with its bound.

    `display.check_plot` checks the name of the file. Raises ConfigError if it cannot be written.
    """
    width = max(12.0, 0.35 * len(report.drafters[0].groups) * len(report.drafters))
    forced = [drafter for drafter in report.drafters if drafter.problem is None]
    panels = [[partial(draw_bars, drafters=report.drafters)], [partial(draw_divergence, drafters=forced)]]
    save_picture(panels, path, size=(width, 9))


def draw_bars(axes: Any, drafters: Sequence[DrafterReport]) -> None:
    """Draws the measured acceptance rates; α_T, hatched, of a drafter that no run measured."""
    labels = list(drafters[0].groups)
    width = 0.8 / len(drafters)
    for place, drafter in enumerate(drafters):
        shift = (place - (len(drafters) - 1) / 2) * width
        is_measured = drafter.method is not None
        parts = [group.measured if is_measured else group.forced for group in drafter.groups.values()]
        rates = [(number, part.acceptance_rate) for number, part in enumerate(parts) if part is not None]
        known = [(number + shift, rate) for number, rate in rates if rate.value is not None]
        if known:
            places, metrics = zip(*known, strict=True)
            axes.bar(places, [metric.value for metric in metrics], width, yerr=reach(metrics), capsize=2,
                     color=f"C{place}", hatch=None if is_measured else "//", edgecolor="white",
                     label=drafter.label if is_measured else f"{drafter.label}: α_T, teacher-forced")  # fmt: skip
    axes.set_xticks(range(len(labels)), labels, rotation=45 if len(labels) > 12 else 0)
    axes.set_ylabel("acceptance rate α, 95 %")
    axes.legend(ncols=min(6, len(drafters)), frameon=False, loc="lower right", bbox_to_anchor=(1, 1))


def draw_divergence(axes: Any, drafters: Sequence[DrafterReport]) -> None:
    largest = 2.0
    for place, drafter in enumerate(drafters):
        found = [group.forced for group in drafter.groups.values() if group.forced]
        heights = [forced.acceptance_rate.value for forced in found]
        for name, marker, metrics in (("KL", "o", [f.kl for f in found]), ("D", "s", [f.cross_entropy for f in found])):
            axes.plot([m.value for m in metrics], heights, marker, color=f"C{place}",
                      label=f"{drafter.label}: {add_mark(name, *drafter.family.excluded.values())}",
                      fillstyle="full" if name == "KL" else "none")  # fmt: skip
            largest = max([largest, *(m.value or 0.0 for m in metrics)])
    line = np.linspace(0, largest, 200)
    axes.plot(line, [pinsker(float(d)) for d in line], color="black", linewidth=0.8, label="bound 1 − √(d/2)")
    axes.set_xlabel(f"divergence, nats ({MARK}: tokens that the drafter excludes count as {TINY:.1e})")
    axes.set_ylabel("α_T")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize=8)
