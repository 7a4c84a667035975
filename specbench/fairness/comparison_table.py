"""What changed from one drafter to another, as a table."""

from collections.abc import Sequence

from rich.table import Table

from specbench.fairness.excluded import marked, notes
from specbench.fairness.numbers import Change, Comparison
from specbench.results.cells import NULL
from specbench.tuning.formats import add_columns, new_table, number_of, with_interval

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
