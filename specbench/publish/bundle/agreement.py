"""Independent runs of one configuration: whether their answers and numbers agree, from records alone."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specbench.records.generation import Key, Record
from specbench.results.answers import BASELINE, Answer, length_columns, speed_columns
from specbench.results.conditions import FieldDifference, conditions_that_differ, differences
from specbench.results.level import Rerun
from specbench.results.paired import pair_up
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.statistics.between_runs import (
    FEWEST_RUNS,
    RandomEffects,
    normalized_error,
    random_effects,
    variances_on_same_units,
)
from specbench.statistics.bootstrap import Estimate, ratio_of

# Another machine, other versions and another place of the models are what a re-run is for.
MAY_DIFFER = {"device", "versions", "products", "intervals", "signatures", "served"}
JUDGED_BY = ("speedup", "mean_acceptance_length")  # hold on any machine, if its kernels are alike
OF_MACHINE = ("tokens_per_second", "tokens_per_second_ar")
COPIED = 0.5  # of the times of two runs equal to the last digit: clocks do not do this
EXPLAINED = ("greedy equal", "near-tie only", "width only", "lossless")  # all differences from AR were looked into


@dataclass(frozen=True)
class MeasuredRow:
    """A row with its run. `operator`: who signed the bundle; None if nobody did."""

    row: Row
    run: RecordedRun
    operator: str | None = None
    source: str = ""  # the bundle and the run, as messages name them


def is_same_configuration(first: Row, second: Row) -> bool:
    """Returns whether two rows measured the same: all but the machine, its software and places of files. Sampled rows
    may have other seeds."""
    return first.names == second.names and not configuration_differences(first, second)


def configuration_differences(first: Row, second: Row) -> list[FieldDifference]:
    """Returns in what two rows did not measure the same. A row of a load is never another's."""
    ignore = set(MAY_DIFFER)
    if first.sampling.temperature > 0:
        ignore.add("seed")
    if first.target_revision is not None and first.target_revision == second.target_revision:
        ignore.add("target")
    own, other = (
        {
            "method": row.method, "drafter": row.drafter_revision or row.drafter,
            "num_draft_tokens": row.num_draft_tokens, "options": row.options, "memory": row.memory,
        }
        for row in (first, second)
    )  # fmt: skip
    loads = [FieldDifference("load", first.level, second.level)] if first.level or second.level else []
    return [*loads, *differences(own, other), *conditions_that_differ(first, second, ignore)]


def why_dependent(first: Sequence[Answer], second: Sequence[Answer]) -> str | None:
    """Returns why two runs are not independent; None if nothing tells it. Whoever edits every time is not found."""
    if not {a.process for a in first}.isdisjoint({b.process for b in second} - {None}):
        return "they are of one process"
    times = {answer.key: answer.decode_seconds for answer in second}
    equal = sum(times.get(answer.key) == answer.decode_seconds for answer in first)
    return "their times are copies" if first and equal > COPIED * len(first) else None


@dataclass(frozen=True)
class Answers:
    """Greedy answers of two runs to the same prompts. `explained`: those that differ where one of the runs has both
    continuations itself, and found the difference to be a near-tie or the width of a pass."""

    compared: int
    equal: int
    explained: int

    @property
    def agree(self) -> bool:
        return self.compared > 0 and self.equal + self.explained == self.compared

    def __str__(self) -> str:
        explained = f", {self.explained} differ at a near-tie or by the width of a pass" if self.explained else ""
        rest = self.compared - self.equal - self.explained
        return f"{self.equal} of {self.compared} equal{explained}" + (f", {rest} differ otherwise" if rest else "")


@dataclass(frozen=True)
class Change:
    """A metric of the second run ÷ that of the first, paired by prompt. `error`: E_n; None without an interval."""

    metric: str
    ratio: Estimate
    error: float | None


@dataclass(frozen=True)
class Agreement:
    """How two independent runs of a row's configuration agree. `answers`: of the method, and of AR; None if sampled."""

    first: MeasuredRow
    second: MeasuredRow
    answers: Answers | None
    baseline_answers: Answers | None
    changes: Sequence[Change]

    @property
    def agrees(self) -> bool:
        """Whether greedy answers are equal up to near-ties and widths, and E_n ≤ 1 for the speed-up and τ, as far as
        they have intervals. Speeds in tokens/s are told, but are the machine's and the day's."""
        known = [change.error for change in self.changes if change.metric in JUDGED_BY and change.error is not None]
        answers = [each.agree for each in (self.answers, self.baseline_answers) if each is not None]
        return all(answers) and all(error <= 1 for error in known)


def compare_runs(first: MeasuredRow, second: MeasuredRow) -> Agreement | str:
    """Returns how two runs of one configuration agree, or why they are not independent or not comparable."""
    sides = [each.run.with_records(each.row) for each in (first, second)]
    if reason := why_dependent(sides[0].own, sides[1].own):
        return reason
    pairs = pair_up(sides[0], sides[1], same=("prompt",))
    if not pairs.num_answers:
        return "their prompts differ"
    greedy = first.row.sampling.temperature == 0
    names: tuple[str, ...] = () if first.row.is_baseline else JUDGED_BY
    if first.row.device == second.row.device:
        names += OF_MACHINE[int(first.row.is_baseline) :]
    changes = []
    for name in names:
        ratio = pairs.change(name).change
        if ratio.value is not None:
            changes.append(Change(name, ratio, normalized_error(ratio)))
    if not greedy and all(change.error is None for change in changes if change.metric in JUDGED_BY):
        return "their answers are sampled, and no speed-up or τ has an interval: nothing tells whether they agree"
    return Agreement(
        first, second, _answers(first, second, first.row.method_name, pairs.own) if greedy else None,
        _answers(first, second, BASELINE, pairs.baseline) if greedy else None, changes,
    )  # fmt: skip


def _answers(
    first: MeasuredRow, second: MeasuredRow, method: str, sides: tuple[Sequence[Answer], Sequence[Answer]]
) -> Answers:
    differ = [a.key for a, b in zip(*sides, strict=True) if a.tokens_digest != b.tokens_digest]
    num_explained = 0
    for key in differ:
        records = [each.run.records[key] for each in (first, second)]
        own, other = (record.methods[method].token_ids.tolist() for record in records)
        num_explained += any(
            _has_both(record, own, other, _explained_methods(each.run, key))
            for each, record in zip((first, second), records, strict=True)
        )
    return Answers(len(sides[0]), len(sides[0]) - len(differ), num_explained)


def _explained_methods(run: RecordedRun, key: Key) -> set[str]:
    """Returns the methods of a run whose differences from AR on a subset were all looked into, and AR."""
    rows = [row for row in run.rows if (row.task_name, row.subset) == key[:2] and row.verdict in EXPLAINED]
    return {BASELINE, *(row.method_name for row in rows)}


def _has_both(record: Record, first: list[int], second: list[int], methods: Collection[str]) -> bool:
    """Returns whether methods of one run wrote both answers up to the first token that differs."""
    place = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if place is None:
        return False  # one ends where the other goes on
    heads = [record.methods[name].token_ids[: place + 1].tolist() for name in methods if name in record.methods]
    return first[: place + 1] in heads and second[: place + 1] in heads


@dataclass(frozen=True)
class Reruns:
    """All independent runs of a row's configuration. `pairs`: how each two agree. `refused`: why others do not count.
    `effects`: by metric, of three runs or more on the same prompts."""

    runs: Sequence[MeasuredRow]
    pairs: Sequence[Agreement]
    refused: Sequence[str] = ()
    effects: Mapping[str, RandomEffects] = field(default_factory=dict)

    @property
    def mark(self) -> Rerun | None:
        if len(self.runs) < 2:
            return None
        machines = {each.row.device for each in self.runs}
        operators = {each.operator for each in self.runs} - {None}
        return Rerun(len(self.runs), all(each.agrees for each in self.pairs), len(machines), len(operators))


def reruns_of(rows: Sequence[MeasuredRow]) -> Reruns:
    """Returns how runs of one configuration agree; a run that depends on an earlier one of `rows` does not count."""
    counted: list[MeasuredRow] = []
    pairs: list[Agreement] = []
    refused = []
    for each in rows:
        found = [(other, compare_runs(other, each)) for other in counted]
        reasons = [f"{other.source} and {each.source}: {reason}" for other, reason in found if isinstance(reason, str)]
        if reasons:
            refused.append(reasons[0])
            continue
        counted.append(each)
        pairs += [agreement for _, agreement in found if isinstance(agreement, Agreement)]
    return Reruns(counted, pairs, refused, _effects(counted))


def _effects(rows: Sequence[MeasuredRow]) -> dict[str, RandomEffects]:
    """Returns the random effects of speed-up and τ over runs, on the prompts that all have."""
    if len(rows) < FEWEST_RUNS or rows[0].row.is_baseline:
        return {}
    sides = [each.run.with_records(each.row) for each in rows]
    shared = set.intersection(*({(a.key, a.prompt) for a in side.own} for side in sides))
    kept = [
        [(a, b) for a, b in zip(side.own, side.baseline, strict=True) if (a.key, a.prompt) in shared] for side in sides
    ]
    kept = [sorted(side, key=lambda pair: pair[0].key) for side in kept]
    prompts: dict[Key, int] = {}
    of_answer = [prompts.setdefault((*a.key[:3], 0, 0), len(prompts)) for a, _ in kept[0]]
    if len(prompts) < FEWEST_RUNS:
        return {}
    found = {}
    for name, columns_of in (("speedup", speed_columns), ("mean_acceptance_length", length_columns)):
        by_run = []
        for side in kept:
            own, plain = [a for a, _ in side], [b for _, b in side]
            columns = columns_of([own, plain] if name == "speedup" else [own])
            by_run.append(np.array([np.bincount(of_answer, weights=column) for column in columns]))
        sums = np.array([each.sum(axis=1) for each in by_run])
        if (np.array([each.max(axis=1) for each in by_run]) < sums).all():
            logs = np.log([float(ratio_of(each)) for each in sums])
            found[name] = random_effects(logs, variances_on_same_units(by_run))
    return found
