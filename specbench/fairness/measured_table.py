"""What runs measured of a drafter, as a table."""

from rich.table import Table

from specbench.fairness.numbers import DrafterReport, GroupNumbers, Measured
from specbench.fairness.spread_lines import spread_lines
from specbench.results.bootstrap import Metric
from specbench.results.cells import NULL
from specbench.tuning.formats import add_columns, new_table, number_of, with_interval


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
