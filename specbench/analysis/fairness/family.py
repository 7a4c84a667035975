"""Sums per prompt of all groups → how unequal they are, and what goes with what."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from specbench.analysis.fairness import forced as p
from specbench.analysis.fairness import groups as c
from specbench.analysis.fairness.groups import Columns, speedups
from specbench.analysis.fairness.spread import Array, estimate, max_over_min, ratios, spearman, variance
from specbench.results.bootstrap import SHARE, Bounds, Metric
from specbench.results.row import Correlations, Family, GroupNumbers, GroupSpread
from specbench.training.divergence import unfairness

Values = Callable[[Sequence[Array]], Array]  # the sums of m groups → the value of each [..., m]


def mean_over_positions(column: int) -> Values:
    return lambda sums: ratios(sums, column, c.POSITIONS)


def measured_rate(sums: Sequence[Array]) -> Array:
    return ratios(sums, c.RATES, c.RATED)


def divergence(sums: Sequence[Array]) -> Array:
    return ratios(sums, p.CROSS_ENTROPY, c.POSITIONS)


def forced_rate(sums: Sequence[Array]) -> Array:
    return ratios(sums, p.ACCEPTANCE, c.POSITIONS)


def forced_speedup(cost: Array) -> Values:
    return lambda sums: ratios(sums, c.PER_PASS, c.POSITIONS) / cost


def fitness(sums: Sequence[Array]) -> Array:
    return 1.0 - ratios(sums, p.DRAFT_MISFIT, c.POSITIONS)


def excluded_masses(groups: Mapping[str, Columns]) -> dict[str, float]:
    """The mean mass of p on tokens that q excludes, of every group that is teacher-forced."""
    totals = {name: group.sums.sum(axis=0) for name, group in groups.items()}
    return {name: float(sums[p.EXCLUDED] / sums[c.POSITIONS]) for name, sums in totals.items() if sums[c.POSITIONS]}


def values_of(cost: Array | None) -> dict[str, Values]:
    """The numbers whose spread is reported, by name; `cost`: 1 + γc of every group [m]."""
    found: dict[str, Values] = {
        "acceptance_rate": measured_rate, "speedup": speedups, "forced_acceptance_rate": forced_rate,
    }  # fmt: skip
    return found if cost is None else {**found, "forced_speedup": forced_speedup(cost)}


def bounds_of(name: str) -> Bounds:
    """The least and the most that a number of one group can be."""
    return SHARE if name in ("acceptance_rate", "forced_acceptance_rate") else (0.0, np.inf)


def variance_bounds(bounds: Bounds) -> Bounds:
    """Those of the variance of numbers within bounds: the most is that of half of them at each end."""
    return 0.0, ((bounds[1] - bounds[0]) / 2) ** 2


def family_of(
    groups: Mapping[str, Columns], numbers: Mapping[str, GroupNumbers], cost: Array | None, seed: int
) -> Family:
    """𝒰, spreads and correlations; what is not known of every group is left out."""
    names, sums = tuple(groups), [group.sums for group in groups.values()]
    is_forced = all(group[:, c.POSITIONS].sum() > 0 for group in sums)
    spreads = {name: spread(names, sums, values, bounds_of(name), seed) for name, values in values_of(cost).items()}
    divergences = divergence([group.sum(axis=0) for group in sums]) if is_forced else None
    return Family(
        groups=names,
        unfairness=estimate(sums, lambda s: unfairness(divergence(s)), seed, least=0.0) if is_forced else None,
        excluded=excluded_masses(groups),
        lowest=None if divergences is None else names[int(divergences.argmin())],
        spreads={name: found for name, found in spreads.items() if found is not None},
        correlations=correlations(sums, [numbers[name].representation_share for name in names], seed),
    )


def spread(
    names: Sequence[str], sums: Sequence[Array], values: Values, bounds: Bounds, seed: int
) -> GroupSpread | None:
    """How unequal a number is; None where a group has none."""
    found = values([group.sum(axis=0) for group in sums])
    if not np.isfinite(found).all():
        return None
    return GroupSpread(
        variance=estimate(sums, lambda s: variance(values(s)), seed, *variance_bounds(bounds)),
        max_over_min=estimate(sums, lambda s: max_over_min(values(s)), seed, least=1.0),
        worst=names[int(found.argmin())],
        best=names[int(found.argmax())],
    )


def correlations(sums: Sequence[Array], shares: Sequence[float | None], seed: int) -> Correlations:
    """Of the groups whose language can be told, those with its share of what the drafter writes; of all groups, those
    with the drafter's fitness."""
    told = [(group, share) for group, share in zip(sums, shares, strict=True) if share is not None]
    groups, known_shares = [group for group, _ in told], np.array([share for _, share in told])

    def of_share(values: Values) -> Metric | None:
        return known(groups, lambda s: spearman(known_shares, values(s)), seed) if told else None

    return Correlations(
        representation_and_acceptance=of_share(forced_rate),
        representation_and_measured=of_share(measured_rate),
        fitness_and_acceptance=known(sums, lambda s: spearman(fitness(s), forced_rate(s)), seed),
        fitness_and_measured=known(sums, lambda s: spearman(fitness(s), measured_rate(s)), seed),
        fitness_and_acceptance_over_prompts=over_prompts(sums),
    )


def known(sums: Sequence[Array], function: Values, seed: int) -> Metric | None:
    """The estimate of a correlation, which lies in −1 … 1; None where it is not defined."""
    found = estimate(sums, function, seed, least=-1.0, most=1.0)
    return None if found.value is None else found


def over_prompts(sums: Sequence[Array]) -> float | None:
    """Spearman's ρ of 1 − r_q and α_T over the prompts of all groups (figure 2a)."""
    prompts = np.concatenate(list(sums))
    prompts = prompts[prompts[:, c.POSITIONS] > 0]
    means = prompts / prompts[:, [c.POSITIONS]]
    found = float(spearman(1.0 - means[:, p.DRAFT_MISFIT], means[:, p.ACCEPTANCE])) if len(prompts) else np.nan
    return found if np.isfinite(found) else None
