"""What changed from one drafter to another, as a table."""

from rich.table import Table

from specbench.fairness.numbers import Change, Comparison
from specbench.results.cells import NULL
from specbench.tuning.formats import add_columns, new_table, number_of, with_interval

COLUMNS = {
    "cross_entropy": "D", "forced_acceptance_rate": "α_T", "acceptance_rate": "measured α", "speedup": "speed-up",
}  # fmt: skip
NAMES = {
    "unfairness": "𝒰", "kl": "KL", "forced_speedup": "S_T", "mean": "mean", "variance": "variance",
    "max_over_min": "max/min", **COLUMNS,
}  # fmt: skip


def comparison_table(found: Comparison) -> Table:
    """A line per group with the differences after − before, then a line per number of all groups."""
    table = new_table(
        f"{found.after} − {found.before}",
        "differences after − before with 95 % intervals, paired by prompt\n"
        + "\n".join(map(line, found.family.items())),
    )
    table.add_column("group", overflow="fold")
    add_columns(table, *(f"Δ {name}" for name in COLUMNS.values()))
    for label, changes in found.groups.items():
        table.add_row(label, *(cell(changes.get(name)) for name in COLUMNS))
    return table


def cell(change: Change | None) -> str:
    return NULL if change is None else with_interval(change.difference, 2)


def line(named: tuple[str, Change]) -> str:
    name, change = named
    words = " of ".join(NAMES[part] for part in reversed(name.split(".")))
    both = " → ".join(number_of(metric, 5) for metric in (change.before, change.after))
    return f"{words}: {both} ({with_interval(change.percent, 1)} %)"
