"""An acceptance profile as tables."""

from collections.abc import Sequence

from specbench.core.table import Table, number_columns, text_columns
from specbench.records.profile import Profile, ProfileEntry
from specbench.results.metric_format import number, with_interval


def tables(profile: Profile) -> list[Table]:
    return [*map(_positions, profile.entries), _cells(profile)]


def _positions(entry: ProfileEntry) -> Table:
    """Returns the rates of an entry by position."""
    total = entry.cell()
    rows = [
        [str(each.position), str(each.verified), str(each.accepted), with_interval(each.conditional, 3),
         with_interval(each.unconditional, 3)]
        for each in total.positions
    ]  # fmt: skip
    noun = "level" if entry.shape == "tree" else "position"
    drafter = "" if entry.drafter is None else f", drafter {entry.drafter.name}"
    caption = [
        f"{entry.target.name}{drafter}, rule {entry.rule}, temperature {entry.conditions.temperature:g}",
        f"a: accepted ÷ verified; r: the chance that all {noun}s up to here are accepted, a product of a",
        f"{sum(total.histogram_cut)} of {total.steps} steps were cut by the end of the text; "
        f"{total.share_short:.0%} drafted fewer than {len(total.draft_lengths) - 1} tokens",
    ]
    if entry.shape == "tree":
        caption.append(
            "levels of draft trees: one of several tokens may be accepted, so these are not rates of a chain"
        )
    return Table(entry.id, (*text_columns(noun), *number_columns("verified", "accepted", "a", "r")), rows, caption)


def _cells(profile: Profile) -> Table:
    """Returns the lengths of all cells."""
    rows: list[Sequence[str]] = []
    for entry in profile.entries:
        rows.append([entry.id])
        for cell in entry.cells:
            length = cell.mean_acceptance_length
            rows.append([
                cell.name, str(cell.prompts), str(cell.steps), with_interval(length.pooled),
                number(length.of_prompts, 2), with_interval(length.of_rates),
            ])  # fmt: skip
    caption = [
        "lengths count the target's own token; pooled: emitted tokens ÷ steps; of prompts: the mean over prompts",
        "1 + Σ r: steps with a draft of full length that no end of the text cuts",
        "intervals are 95 % intervals over prompts",
        *(f"left out: {each.method} of {each.run}: {each.reason}" for each in profile.left_out),
    ]
    heads = number_columns("prompts", "steps", "pooled", "of prompts", "1 + Σ r")
    return Table("tokens per target pass", (*text_columns("cell"), *heads), rows, caption)
