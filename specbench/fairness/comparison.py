"""Two drafters on the same prompts: what a change of the drafter changes, with paired intervals."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from specbench.fairness import positions as p
from specbench.fairness.columns import WIDTH, Columns
from specbench.fairness.family import Values, divergence, mean_over_positions, values_of
from specbench.fairness.numbers import Change, Comparison
from specbench.fairness.spread import Array, estimate, max_over_min, variance
from specbench.training.divergence import unfairness

Side = Callable[[Sequence[Array]], Array]  # the sums of m groups → one value


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
        pairs = {name: (first(own[0][name]), first(own[1][name])) for name in names}
        of_groups[group] = changes([both], pairs, seed)
    return Comparison(
        before=labels[0], after=labels[1], groups=of_groups,
        family=changes(list(groups.values()), over_groups(values, names), seed),
    )  # fmt: skip


def with_divergence(cost: Array | None) -> dict[str, Values]:
    return {"cross_entropy": divergence, "kl": mean_over_positions(p.KL), **values_of(cost)}


def first(values: Values) -> Side:
    """The value of a single group."""
    return lambda sums: values(sums)[..., 0]


def over_groups(values: Sequence[Mapping[str, Values]], names: Sequence[str]) -> dict[str, tuple[Side, Side]]:
    """𝒰, and of every rate and speed-up its mean, variance and max/min."""

    def applied(function: Callable[[Array], Array], of: Values) -> Side:
        return lambda sums: function(of(sums))

    pairs = {"unfairness": (applied(unfairness, divergence), applied(unfairness, divergence))}
    for name in names:
        measures = {"mean": mean} if name in ("cross_entropy", "kl") else MEASURES
        for label, function in measures.items():
            pairs[f"{name}.{label}"] = (applied(function, values[0][name]), applied(function, values[1][name]))
    return pairs


def mean(values: Array) -> Array:
    return np.asarray(values.mean(axis=-1))


MEASURES = {"mean": mean, "variance": variance, "max_over_min": max_over_min}


def changes(both: Sequence[Array], pairs: Mapping[str, tuple[Side, Side]], seed: int) -> dict[str, Change]:
    """Every change of which both sides are known."""
    found = {name: change(both, *pair, seed) for name, pair in pairs.items()}
    return {name: each for name, each in found.items() if each.difference.value is not None}


def change(both: Sequence[Array], before: Side, after: Side, seed: int) -> Change:
    """One number, never below 0, on both sides of the columns."""

    def old(sums: Sequence[Array]) -> Array:
        return before([each[..., :WIDTH] for each in sums])

    def new(sums: Sequence[Array]) -> Array:
        return after([each[..., WIDTH:] for each in sums])

    def percent(sums: Sequence[Array]) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(100 * (new(sums) / old(sums) - 1))

    return Change(
        before=estimate(both, old, seed, least=0.0),
        after=estimate(both, new, seed, least=0.0),
        difference=estimate(both, lambda sums: new(sums) - old(sums), seed),
        percent=estimate(both, percent, seed, least=-100.0),
    )
