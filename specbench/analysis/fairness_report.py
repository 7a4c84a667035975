"""Drafters, texts and records → the report of `specbench fairness`. Rates are shares, divergences are nats."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from specbench.analysis.fairness_drafters import DrafterEntry, Numbers
from specbench.analysis.fairness_groups import (
    WIDTH,
    GroupSums,
    Values,
    bounds_of,
    divergence,
    excluded_masses,
    family_of,
    forced_numbers_of,
    group_sums,
    kl_divergence,
    measured_numbers,
    step_costs,
    values_by_name,
    variance_bounds,
    with_rank,
)
from specbench.analysis.fairness_runs import WHOLE, CommonRecords
from specbench.analysis.group_statistics import Array, estimate, max_over_min, variance
from specbench.analysis.representation import Representation
from specbench.results.bootstrap import Bounds, FilePart, Metric, Prompts
from specbench.results.captions import draft_length
from specbench.results.metrics import times
from specbench.results.row import FairnessSummary, GroupNumbers
from specbench.running.records import Key, Record
from specbench.specs.task import TaskSpec
from specbench.tasks.scoring.contract import make_scorer
from specbench.training.passes import unfairness


class DrafterReport(FilePart):
    """One drafter. `draft_length`: in the words of a run's caption, None where no run measured it; `cost_ratio`: c over
    all groups of its run; `problem`: why nothing is teacher-forced."""

    label: str
    drafter: str | None
    revision: str | None
    run: str | None
    method: str | None
    num_draft_tokens: int
    draft_length: str | None = None
    cost_ratio: float | None
    problem: str | None
    num_texts_represented: int | None = None
    prompt_represented: str | None = None  # the beginning of these texts, as representation.Representation
    groups: dict[str, GroupNumbers]
    family: FairnessSummary


class NumberChange(FilePart):
    """A number before and after; `difference`: paired, after − before; `percent`: of the number before. All four are of
    the same resamples."""

    before: Metric
    after: Metric
    difference: Metric
    percent: Metric


class DrafterComparison(FilePart):
    """Two drafters on the same prompts. `groups`: by group, `family`: over all; the changes by the number's name.
    `excluded_before`, `excluded_after`: by group, as in `ForcedNumbers`."""

    before: str
    after: str
    excluded_before: dict[str, float]
    excluded_after: dict[str, float]
    groups: dict[str, dict[str, NumberChange]]
    family: dict[str, NumberChange]


class FairnessReport(FilePart):
    """The report of `specbench fairness`. `num_left_out`: records that not all runs hold."""

    target: str
    target_revision: str | None
    reference: str
    seed: int
    num_samples: int
    num_prompts: int
    num_left_out: int
    runs: tuple[str, ...]
    drafters: tuple[DrafterReport, ...]
    comparison: DrafterComparison | None = None


DEFAULT_NUM_DRAFT_TOKENS = 5  # of a drafter that no run has measured: that of arXiv:2510.02128, appendix D


def sums_by_group(entry: DrafterEntry, common: CommonRecords, numbers: Mapping[str, Numbers]) -> dict[str, GroupSums]:
    """Returns the sums of all groups of a drafter, by label; `numbers`: teacher-forced, by route."""
    records = entry.run.records if entry.run is not None else common.runs[0].records
    speeds = route_speeds(entry, common, records)
    groups = {}
    for place, keys in common.keys.items():
        routes = {key: entry.route(records[key]) for key in keys}
        forced = {key: numbers[r][key] for key, r in routes.items() if r in numbers and key in numbers[r]}
        lengths, costs = zip(*(speeds[route] for route in sorted({*routes.values()})), strict=True)
        cost = costs[0] if len(costs) == 1 else None
        groups[common.labels[place]] = group_sums(keys, records, entry.method, forced, max(lengths), cost)
    return groups


def route_speeds(
    entry: DrafterEntry, common: CommonRecords, records: Mapping[Key, Record]
) -> dict[str, tuple[int, float | None]]:
    """Returns γ and c of every route. A drafter that no run has measured is given the draft tokens of the first method.
    c is that of all records of a route, so that expected speed-ups of groups differ by acceptance alone."""
    if entry.method is None:
        lengths = [row.num_draft_tokens for row in common.runs[0].rows if row.num_draft_tokens]
        return {WHOLE: ((*lengths, DEFAULT_NUM_DRAFT_TOKENS)[0], None)}
    by_route: dict[str, list[Record]] = defaultdict(list)
    for record in (records[key] for keys in common.keys.values() for key in keys):
        by_route[entry.route(record)].append(record)
    speeds = {}
    for route, found in by_route.items():
        own, baseline = ([record["methods"][name] for record in found] for name in (entry.method, "ar"))
        cost_ratio = times(Prompts.of(found, 0), own, baseline)["cost_ratio"].value
        speeds[route] = (entry.num_draft_tokens(route), cost_ratio)
    return speeds


def drafter_report(
    entry: DrafterEntry, sums: Mapping[str, GroupSums], common: CommonRecords, tasks: Mapping[str, TaskSpec],
    texts: Representation | None, seed: int,
) -> DrafterReport:  # fmt: skip
    """Returns the numbers of every group and of all together. Raises BoundViolation where they contradict the
    theorems."""
    row = entry.rows[0] if entry.rows else None
    groups = {}
    for (task, subset), label in common.labels.items():
        own = sums[label]
        scorer = make_scorer(tasks[task].subset(subset)) if own.bleu is not None else None
        found = GroupNumbers(
            task=task, subset=subset, language=common.groups[task, subset].language, num_prompts=len(own.sums),
            measured=None if entry.method is None else measured_numbers(own, scorer, seed),
            forced=forced_numbers_of(f"{entry.label}, {label}", own, seed),
        )  # fmt: skip
        groups[label] = with_rank(found, texts)
    costs = {group.cost_ratio for group in sums.values()}
    return DrafterReport(
        label=entry.label,
        drafter=row.drafter if row is not None else entry.label,
        revision=row.drafter_revision if row is not None else entry.models[0].revision,
        run=str(entry.run.path) if entry.run is not None else None,
        method=entry.method,
        num_draft_tokens=max(group.num_draft_tokens for group in sums.values()),
        draft_length=draft_length(row) if row is not None else None,
        cost_ratio=costs.pop() if len(costs) == 1 else None,
        problem=entry.problem,
        num_texts_represented=texts.num_texts if texts else None,
        prompt_represented=texts.prompt if texts else None,
        groups=groups,
        family=family_of(sums, groups, seed),
    )


Pairs = Sequence[tuple[GroupSums, GroupSums]]  # a group of two drafters, of the same prompts in the same order
OfNumbers = Callable[[Array], Array]  # a number of m groups [..., m] → one value [...]


def compare_drafters(
    labels: tuple[str, str], before: Mapping[str, GroupSums], after: Mapping[str, GroupSums], seed: int
) -> DrafterComparison:
    """Returns the changes from the first drafter to the second, of the same groups. A prompt is drawn for both drafters
    at once."""
    pairs = {label: [(group, after[label])] for label, group in before.items()}
    return DrafterComparison(
        before=labels[0], after=labels[1], excluded_before=excluded_masses(before),
        excluded_after=excluded_masses(after),
        groups={
            label: _without_unknown(
                {name: change(pair, mean, values, bounds_of(name), seed)
                 for name, values in _compared_values(pair).items()}
            )
            for label, pair in pairs.items()
        },
        family=_changes_of_family([pair for [pair] in pairs.values()], seed),
    )  # fmt: skip


def _changes_of_family(pairs: Pairs, seed: int) -> dict[str, NumberChange]:
    """Returns the change of 𝒰, and of the mean, variance and max/min of every rate and speed-up."""
    found = {"unfairness": change(pairs, unfairness, (divergence, divergence), (0.0, np.inf), seed)}
    for name, values in _compared_values(pairs).items():
        bounds = bounds_of(name)
        found[f"{name}.mean"] = change(pairs, mean, values, bounds, seed)
        if name not in ("cross_entropy", "kl"):
            found[f"{name}.variance"] = change(pairs, variance, values, variance_bounds(bounds), seed)
            found[f"{name}.max_over_min"] = change(pairs, max_over_min, values, (1.0, np.inf), seed)
    return _without_unknown(found)


def _compared_values(pairs: Pairs) -> dict[str, tuple[Values, Values]]:
    """Returns the numbers of the groups of both drafters, by name, that both have."""
    before, after = (values_by_name(step_costs(groups)) for groups in zip(*pairs, strict=True))
    known = {name: (values, after[name]) for name, values in before.items() if name in after}
    return {"cross_entropy": (divergence, divergence), "kl": (kl_divergence, kl_divergence), **known}


def _without_unknown(changes: Mapping[str, NumberChange]) -> dict[str, NumberChange]:
    return {name: each for name, each in changes.items() if each.difference.value is not None}


def mean(values: Array) -> Array:
    return np.asarray(values.mean(axis=-1))


def change(
    pairs: Pairs, function: OfNumbers, values: tuple[Values, Values], bounds: Bounds,
    seed: int,
) -> NumberChange:  # fmt: skip
    """Returns the change of a function of the numbers of the groups of both drafters; `bounds`: the least, not below 0,
    and the most that it can be."""
    both = [np.hstack([before.sums, after.sums]) for before, after in pairs]  # [num_prompts, 2 · WIDTH]
    least, most = bounds

    def old(sums: Sequence[Array]) -> Array:
        return function(values[0]([each[..., :WIDTH] for each in sums]))

    def new(sums: Sequence[Array]) -> Array:
        return function(values[1]([each[..., WIDTH:] for each in sums]))

    def percent(sums: Sequence[Array]) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(100 * (new(sums) / old(sums) - 1))

    return NumberChange(
        before=estimate(both, old, seed, least, most),
        after=estimate(both, new, seed, least, most),
        difference=estimate(both, lambda sums: new(sums) - old(sums), seed, least - most, most - least),
        percent=estimate(both, percent, seed, least=-100.0),
    )
