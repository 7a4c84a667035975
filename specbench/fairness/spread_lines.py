"""How unequal a drafter's numbers are over the groups, as lines of a caption."""

from specbench.fairness.numbers import DrafterReport, Spread
from specbench.tuning.formats import with_interval

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


def spread_text(found: Spread) -> str:
    return (
        f"variance {with_interval(found.variance, 5)}, max/min {with_interval(found.max_over_min, 2)}, worst "
        f"{found.worst}, best {found.best}"
    )
