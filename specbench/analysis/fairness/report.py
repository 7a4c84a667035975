"""The report of `specbench fairness`, made from drafters, texts and records. Rates are shares, divergences are nats."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from specbench.analysis.fairness.drafters import WHOLE, CommonRecords, DrafterEntry, Numbers
from specbench.analysis.fairness.groups import (
    WIDTH,
    GroupSums,
    Values,
    bounds_of,
    divergence,
    estimate,
    excluded_masses,
    forced_numbers_of,
    group_sums,
    kl_divergence,
    max_over_min,
    measured_numbers,
    step_costs,
    summarize_family,
    values_by_name,
    variance,
    variance_bounds,
)
from specbench.analysis.fairness.representation import Representation, share_of
from specbench.records.records import Key, Record
from specbench.report.captions import draft_length
from specbench.results.metrics import times
from specbench.results.row import FairnessSummary, GroupNumbers
from specbench.specs.task import TaskSpec
from specbench.statistics.bootstrap import Array, Bounds, Estimate, FilePart, Resampler
from specbench.tasks.scoring import make_scorer
from specbench.training.passes import unfairness


class DrafterReport(FilePart):
    """One drafter. `draft_length`: as a run's caption states it, None if no run measured it; `cost_ratio`: c over all
    groups of its run; `problem`: the reason why it has no teacher-forced numbers."""

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
    prompt_represented: str | None = None  # the beginning of these texts, as `Representation.prompt`
    groups: dict[str, GroupNumbers]
    family: FairnessSummary


class NumberChange(FilePart):
    """A number before and after. `difference`: after − before, paired; `percent`: the difference in percent of the
    number before. All four come from the same resamples."""

    before: Estimate
    after: Estimate
    difference: Estimate
    percent: Estimate


class DrafterComparison(FilePart):
    """Two drafters on the same prompts. `groups`, `family`: the changes of each group and over all groups, by the name
    of the number. `excluded_before`, `excluded_after`: by group, as in `ForcedNumbers`."""

    before: str
    after: str
    excluded_before: dict[str, float]
    excluded_after: dict[str, float]
    groups: dict[str, dict[str, NumberChange]]
    family: dict[str, NumberChange]


class FairnessReport(FilePart):
    """The report of `specbench fairness`. `num_left_out`: the number of records that some runs lack."""

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


DEFAULT_NUM_DRAFT_TOKENS = 5  # γ of a drafter that no run measured, from arXiv:2510.02128, appendix D


def sums_by_group(entry: DrafterEntry, common: CommonRecords, numbers: Mapping[str, Numbers]) -> dict[str, GroupSums]:
    """Returns the sums of a drafter's groups, by label. `numbers`: the teacher-forced numbers by route."""
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
    """Returns γ and c of every route. A drafter that no run measured gets the γ of the first method. c is computed from
    all records of a route, so that the expected speed-ups of groups differ only by acceptance."""
    if entry.method is None:
        lengths = [row.num_draft_tokens for row in common.runs[0].rows if row.num_draft_tokens]
        return {WHOLE: ((*lengths, DEFAULT_NUM_DRAFT_TOKENS)[0], None)}
    by_route: dict[str, list[Record]] = defaultdict(list)
    for record in (records[key] for keys in common.keys.values() for key in keys):
        by_route[entry.route(record)].append(record)
    speeds = {}
    for route, found in by_route.items():
        own, baseline = ([record["methods"][name] for record in found] for name in (entry.method, "ar"))
        cost_ratio = times(Resampler.of(found, 0), own, baseline)["cost_ratio"].value
        speeds[route] = (entry.num_draft_tokens(route), cost_ratio)
    return speeds


def drafter_report(
    entry: DrafterEntry, sums: Mapping[str, GroupSums], common: CommonRecords, tasks: Mapping[str, TaskSpec],
    texts: Representation | None, seed: int,
) -> DrafterReport:  # fmt: skip
    """Returns the numbers of every group and over all groups. Raises BoundViolation if they contradict the theorems."""
    row = entry.rows[0] if entry.rows else None
    groups = {}
    for (task, subset), label in common.labels.items():
        own = sums[label]
        scorer = make_scorer(tasks[task].subset(subset)) if own.bleu is not None else None
        language = common.groups[task, subset].language
        share = share_of(texts.languages, language) if texts else None
        groups[label] = GroupNumbers(
            task=task, subset=subset, language=language, num_prompts=len(own.sums),
            measured=None if entry.method is None else measured_numbers(own, scorer, seed),
            forced=forced_numbers_of(f"{entry.label}, {label}", own, seed),
            representation_rank=share.rank if share else None, representation_share=share.share if share else None,
        )  # fmt: skip
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
        family=summarize_family(sums, groups, seed),
    )


Pairs = Sequence[tuple[GroupSums, GroupSums]]  # each group before and after, with the same prompts in the same order
GroupStatistic = Callable[[Array], Array]  # a number of m groups [..., m] → one value [...]


def compare_drafters(
    labels: tuple[str, str], before: Mapping[str, GroupSums], after: Mapping[str, GroupSums], seed: int
) -> DrafterComparison:
    """Returns the changes from the first drafter to the second in the same groups. Resamples draw a prompt for both
    drafters together."""
    pairs = {label: [(group, after[label])] for label, group in before.items()}
    return DrafterComparison(
        before=labels[0], after=labels[1], excluded_before=excluded_masses(before),
        excluded_after=excluded_masses(after),
        groups={
            label: _drop_unknown(
                {name: measure_change(pair, mean, values, bounds_of(name), seed)
                 for name, values in _compared_values(pair).items()}
            )
            for label, pair in pairs.items()
        },
        family=_family_changes([pair for [pair] in pairs.values()], seed),
    )  # fmt: skip


def _family_changes(pairs: Pairs, seed: int) -> dict[str, NumberChange]:
    """Returns the change of 𝒰, and of the mean, variance and max/min of every rate and speed-up."""
    found = {"unfairness": measure_change(pairs, unfairness, (divergence, divergence), (0.0, np.inf), seed)}
    for name, values in _compared_values(pairs).items():
        bounds = bounds_of(name)
        found[f"{name}.mean"] = measure_change(pairs, mean, values, bounds, seed)
        if name not in ("cross_entropy", "kl"):
            found[f"{name}.variance"] = measure_change(pairs, variance, values, variance_bounds(bounds), seed)
            found[f"{name}.max_over_min"] = measure_change(pairs, max_over_min, values, (1.0, np.inf), seed)
    return _drop_unknown(found)


def _compared_values(pairs: Pairs) -> dict[str, tuple[Values, Values]]:
    """Returns the numbers that both drafters have, by name, each as a function of the sums of either."""
    before, after = (values_by_name(step_costs(groups)) for groups in zip(*pairs, strict=True))
    known = {name: (values, after[name]) for name, values in before.items() if name in after}
    return {"cross_entropy": (divergence, divergence), "kl": (kl_divergence, kl_divergence), **known}


def _drop_unknown(changes: Mapping[str, NumberChange]) -> dict[str, NumberChange]:
    return {name: each for name, each in changes.items() if each.difference.value is not None}


def mean(values: Array) -> Array:
    return np.asarray(values.mean(axis=-1))


def measure_change(
    pairs: Pairs, function: GroupStatistic, values: tuple[Values, Values], bounds: Bounds, seed: int
) -> NumberChange:
    """Returns the change of a statistic over groups from one drafter to the other. `values`: the number of each group,
    for either drafter; `bounds`: the least (not below 0) and the greatest value of the statistic."""
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
