"""Drafters, texts and records → the report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis.fairness_drafters import KL, DrafterEntry, Numbers
from specbench.analysis.fairness_groups import (
    WIDTH,
    Columns,
    Values,
    bounds_of,
    columns_of,
    divergence,
    excluded_masses,
    family_of,
    forced_group,
    mean_over_positions,
    measured_numbers,
    values_of,
    variance_bounds,
    with_rank,
)
from specbench.analysis.fairness_numbers import DrafterComparison, DrafterReport, NumberChange
from specbench.analysis.fairness_runs import CommonRecords
from specbench.analysis.group_statistics import Array, estimate, max_over_min, variance
from specbench.analysis.representation import Representation
from specbench.results.bootstrap import Bounds, Prompts
from specbench.results.captions import draft_length
from specbench.results.metrics import times
from specbench.results.row import GroupNumbers, Row
from specbench.running.records import Key, Record
from specbench.specs.task import TaskSpec
from specbench.tasks.scoring.contract import make_scorer
from specbench.training.passes import unfairness

OfGroups = Callable[[Sequence[Array]], Array]  # the sums of m groups → one value


@dataclass(frozen=True)
class ComparedNumber:
    """A number of both drafters; `bounds`: the least, not below 0, and the most that it can be."""

    before: OfGroups
    after: OfGroups
    bounds: Bounds


def compare_drafters(
    labels: tuple[str, str], sides: tuple[Mapping[str, Columns], Mapping[str, Columns]],
    costs: tuple[Array | None, Array | None], seed: int,
) -> DrafterComparison:  # fmt: skip
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
        numbers = {name: ComparedNumber(first(own[0][name]), first(own[1][name]), bounds_of(name)) for name in names}
        of_groups[group] = changes([both], numbers, seed)
    return DrafterComparison(
        before=labels[0], after=labels[1], groups=of_groups,
        excluded_before=excluded_masses(sides[0]), excluded_after=excluded_masses(sides[1]),
        family=changes(list(groups.values()), over_groups(values, names), seed),
    )  # fmt: skip


def with_divergence(cost: Array | None) -> dict[str, Values]:
    return {"cross_entropy": divergence, "kl": mean_over_positions(KL), **values_of(cost)}


def first(values: Values) -> OfGroups:
    """Returns a function for the value of a single group."""
    return lambda sums: values(sums)[..., 0]


def over_groups(values: Sequence[Mapping[str, Values]], names: Sequence[str]) -> dict[str, ComparedNumber]:
    """𝒰, and of every rate and speed-up its mean, variance and max/min."""

    def applied(function: Callable[[Array], Array], of: Values) -> OfGroups:
        return lambda sums: function(of(sums))

    of_divergence = applied(unfairness, divergence)
    found = {"unfairness": ComparedNumber(of_divergence, of_divergence, (0.0, np.inf))}
    for name in names:
        bounds = bounds_of(name)
        measures: dict[str, tuple[Callable[[Array], Array], Bounds]] = {"mean": (mean, bounds)}
        if name not in ("cross_entropy", "kl"):
            measures |= {"variance": (variance, variance_bounds(bounds)), "max_over_min": (max_over_min, (1.0, np.inf))}
        for label, (function, own) in measures.items():
            before, after = (applied(function, side[name]) for side in values)
            found[f"{name}.{label}"] = ComparedNumber(before, after, own)
    return found


def mean(values: Array) -> Array:
    return np.asarray(values.mean(axis=-1))


def changes(both: Sequence[Array], numbers: Mapping[str, ComparedNumber], seed: int) -> dict[str, NumberChange]:
    """Returns the changes whose two sides are known."""
    found = {name: change(both, number, seed) for name, number in numbers.items()}
    return {name: each for name, each in found.items() if each.difference.value is not None}


def change(both: Sequence[Array], number: ComparedNumber, seed: int) -> NumberChange:
    """Returns the change of one number; the columns hold both sides."""
    least, most = number.bounds

    def old(sums: Sequence[Array]) -> Array:
        return number.before([each[..., :WIDTH] for each in sums])

    def new(sums: Sequence[Array]) -> Array:
        return number.after([each[..., WIDTH:] for each in sums])

    def percent(sums: Sequence[Array]) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(100 * (new(sums) / old(sums) - 1))

    return NumberChange(
        before=estimate(both, old, seed, least, most),
        after=estimate(both, new, seed, least, most),
        difference=estimate(both, lambda sums: new(sums) - old(sums), seed, least - most, most - least),
        percent=estimate(both, percent, seed, least=-100.0),
    )


DEFAULT_NUM_DRAFT_TOKENS = 5  # of a drafter that no run has measured: that of arXiv:2510.02128, appendix D


@dataclass(frozen=True)
class GroupSpeed:
    """γ and c of a group. With several routes in the group γ is that of the longest, and there is no one c."""

    num_draft_tokens: int
    cost_ratio: float | None

    @property
    def step_cost(self) -> float | None:
        """1 + γc: what a step costs, in target passes over one token."""
        return None if self.cost_ratio is None else 1 + self.num_draft_tokens * self.cost_ratio


@dataclass(frozen=True)
class ComparedDrafter:
    """A drafter with the sums from which its numbers are computed, by the group's label."""

    entry: DrafterEntry
    columns: dict[str, Columns]
    speeds: dict[str, GroupSpeed]

    @property
    def step_costs(self) -> Array | None:
        """1 + γc of every group [m]; None where one is not known."""
        costs = [speed.step_cost for speed in self.speeds.values()]
        return None if None in costs else np.array(costs, dtype=np.float64)


def group_labels(common: CommonRecords) -> dict[tuple[str, str], str]:
    """Returns the label of each group: its subset, with its task where there are several."""
    several = len({task for task, _ in common.groups}) > 1
    return {(task, subset): f"{task}/{subset}" if several else subset for task, subset in common.groups}


def compared_drafter(entry: DrafterEntry, common: CommonRecords, numbers: Mapping[str, Numbers]) -> ComparedDrafter:
    """Returns the sums of all groups; `numbers`: teacher-forced, by route."""
    records = entry.run.records if entry.run is not None else common.runs[0].records
    labels = group_labels(common)
    speeds = _speeds(entry, common, records)
    columns = {}
    for place, keys in common.keys.items():
        chosen = {key: numbers[route][key] for key in keys
                  if (route := entry.route(records[key])) in numbers and key in numbers[route]}  # fmt: skip
        length = speeds[labels[place]].num_draft_tokens
        columns[labels[place]] = columns_of(keys, records, entry.method, chosen or None, length)
    return ComparedDrafter(entry, columns, speeds)


def _speeds(entry: DrafterEntry, common: CommonRecords, records: Mapping[Key, Record]) -> dict[str, GroupSpeed]:
    """γ and c of every group. A drafter that no run has measured is given the draft tokens of the first method. c is
    that of all records of a route, so that expected speed-ups of groups differ by acceptance alone."""
    labels = group_labels(common)
    if entry.method is None:
        lengths = [row.num_draft_tokens for row in common.runs[0].rows if row.num_draft_tokens]
        return {label: GroupSpeed((*lengths, DEFAULT_NUM_DRAFT_TOKENS)[0], None) for label in labels.values()}
    by_route: dict[str, list[Record]] = {}
    taken: dict[str, set[str]] = {label: set() for label in labels.values()}
    for place, keys in common.keys.items():
        for key in keys:
            route = entry.route(records[key])
            by_route.setdefault(route, []).append(records[key])
            taken[labels[place]].add(route)
    costs = {route: _cost_ratio(chosen, entry.method) for route, chosen in by_route.items()}
    return {
        label: GroupSpeed(
            max(entry.num_draft_tokens(r) for r in routes), costs[min(routes)] if len(routes) == 1 else None
        )
        for label, routes in taken.items()
    }


def _cost_ratio(records: Sequence[Record], method: str) -> float | None:
    own, baseline = ([record["methods"][name] for record in records] for name in (method, "ar"))
    return times(Prompts.of(records, 0), own, baseline)["cost_ratio"].value


def drafter_report(
    subject: ComparedDrafter,
    common: CommonRecords,
    tasks: Mapping[str, TaskSpec],
    found: Representation | None,
    seed: int,
) -> DrafterReport:
    """Returns the numbers of every group and of all together. Raises BoundViolation where they contradict the
    theorems."""
    entry = subject.entry
    row = entry.rows[0] if entry.rows else None
    groups = {
        label: with_rank(_group(label, subject, place, common.groups[place], tasks, seed), found)
        for place, label in group_labels(common).items()
    }
    costs = {speed.cost_ratio for speed in subject.speeds.values()}
    return DrafterReport(
        label=entry.label,
        drafter=row.drafter if row is not None else entry.label,
        revision=row.drafter_revision if row is not None else entry.models[0].revision,
        run=str(entry.run.path) if entry.run is not None else None,
        method=entry.method,
        num_draft_tokens=max(speed.num_draft_tokens for speed in subject.speeds.values()),
        draft_length=draft_length(row) if row is not None else None,
        cost_ratio=costs.pop() if len(costs) == 1 else None,
        problem=entry.problem,
        num_texts_represented=found.num_texts if found else None,
        prompt_represented=found.prompt if found else None,
        groups=groups,
        family=family_of(subject.columns, groups, subject.step_costs, seed),
    )


def _group(
    label: str, subject: ComparedDrafter, place: tuple[str, str], row: Row, tasks: Mapping[str, TaskSpec], seed: int
) -> GroupNumbers:
    columns, speed = subject.columns[label], subject.speeds[label]
    scorer = make_scorer(tasks[place[0]].subset(place[1])) if columns.bleu is not None else None
    return GroupNumbers(
        task=place[0],
        subset=place[1],
        language=row.language,
        num_prompts=len(columns.sums),
        measured=None if subject.entry.method is None else measured_numbers(columns, scorer, seed),
        forced=forced_group(f"{subject.entry.label}, {label}", columns, speed.num_draft_tokens, speed.step_cost, seed),
    )


def comparison_of(before: ComparedDrafter, after: ComparedDrafter, seed: int) -> DrafterComparison:
    """Returns the changes from one drafter to the other."""
    return compare_drafters(
        (before.entry.label, after.entry.label), (before.columns, after.columns),
        (before.step_costs, after.step_costs), seed,
    )  # fmt: skip
