"""Two drafters on the same prompts: what a change of the drafter changes, with paired intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.fairness import positions as p
from specbench.fairness.columns import WIDTH, Columns
from specbench.fairness.family import (
    Values,
    bounds_of,
    divergence,
    excluded_masses,
    mean_over_positions,
    values_of,
    variance_bounds,
)  # fmt: skip
from specbench.fairness.numbers import Change, Comparison
from specbench.fairness.spread import Array, estimate, max_over_min, variance
from specbench.results.bootstrap import Bounds
from specbench.training.divergence import unfairness

Side = Callable[[Sequence[Array]], Array]  # the sums of m groups → one value


@dataclass(frozen=True)
class Number:
    """A number of both drafters; `bounds`: the least, not below 0, and the most that it can be."""

    before: Side
    after: Side
    bounds: Bounds


def compare(
    labels: tuple[str, str], sides: tuple[Mapping[str, Columns], Mapping[str, Columns]],
    costs: tuple[Array | None, Array | None], seed: int,
) -> Comparison:  # fmt: skip
    """The changes from the first drafter to the second. `sides`: their groups, of the same prompts in the same order;
    `costs`: 1 + γc of every group [m]. A prompt is drawn for both drafters at once."""
    groups = {
        name: np.hstack([before.sums, sides[1][name].sums]) for name, before in sides[0].items()
    }  # [num_prompts, 2 · WIDTH]
    values = [with_divergence(cost) for cost in costs]
    names = [name for name in values[0] if name in values[1]]
    of_groups = {}
    for number, (group, both) in enumerate(groups.items()):
        own = [with_divergence(None if cost is None else cost[[number]]) for cost in costs]
        numbers = {name: Number(first(own[0][name]), first(own[1][name]), bounds_of(name)) for name in names}
        of_groups[group] = changes([both], numbers, seed)
    return Comparison(
        before=labels[0], after=labels[1], groups=of_groups,
        excluded_before=excluded_masses(sides[0]), excluded_after=excluded_masses(sides[1]),
        family=changes(list(groups.values()), over_groups(values, names), seed),
    )  # fmt: skip


def with_divergence(cost: Array | None) -> dict[str, Values]:
    return {"cross_entropy": divergence, "kl": mean_over_positions(p.KL), **values_of(cost)}


def first(values: Values) -> Side:
    """The value of a single group."""
    return lambda sums: values(sums)[..., 0]


def over_groups(values: Sequence[Mapping[str, Values]], names: Sequence[str]) -> dict[str, Number]:
    """𝒰, and of every rate and speed-up its mean, variance and max/min."""

    def applied(function: Callable[[Array], Array], of: Values) -> Side:
        return lambda sums: function(of(sums))

    of_divergence = applied(unfairness, divergence)
    found = {"unfairness": Number(of_divergence, of_divergence, (0.0, np.inf))}
    for name in names:
        bounds = bounds_of(name)
        measures: dict[str, tuple[Callable[[Array], Array], Bounds]] = {"mean": (mean, bounds)}
        if name not in ("cross_entropy", "kl"):
            measures |= {"variance": (variance, variance_bounds(bounds)), "max_over_min": (max_over_min, (1.0, np.inf))}
        for label, (function, own) in measures.items():
            before, after = (applied(function, side[name]) for side in values)
            found[f"{name}.{label}"] = Number(before, after, own)
    return found


def mean(values: Array) -> Array:
    return np.asarray(values.mean(axis=-1))


def changes(both: Sequence[Array], numbers: Mapping[str, Number], seed: int) -> dict[str, Change]:
    """Every change of which both sides are known."""
    found = {name: change(both, number, seed) for name, number in numbers.items()}
    return {name: each for name, each in found.items() if each.difference.value is not None}


def change(both: Sequence[Array], number: Number, seed: int) -> Change:
    """One number on both sides of the columns."""
    least, most = number.bounds

    def old(sums: Sequence[Array]) -> Array:
        return number.before([each[..., :WIDTH] for each in sums])

    def new(sums: Sequence[Array]) -> Array:
        return number.after([each[..., WIDTH:] for each in sums])

    def percent(sums: Sequence[Array]) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(100 * (new(sums) / old(sums) - 1))

    return Change(
        before=estimate(both, old, seed, least, most),
        after=estimate(both, new, seed, least, most),
        difference=estimate(both, lambda sums: new(sums) - old(sums), seed, least - most, most - least),
        percent=estimate(both, percent, seed, least=-100.0),
    )
