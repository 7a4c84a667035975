"""Compares two runs, methods or rows: what differs in configuration and in numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.table import Table, numbers, words
from specbench.results.bootstrap import SMALL_SAMPLE
from specbench.results.captions import FEW, rests_on_few
from specbench.results.comparison_input import ComparisonInput
from specbench.results.conditions import FieldDifference, conditions_that_differ, differences, leaves
from specbench.results.paired import KINDS, MetricChange, Pairs, pair_up
from specbench.results.row import ALL, RESULT_FIELDS, Row
from specbench.results.runs import RecordedRuns
from specbench.results.tables import marked, warning_lines
from specbench.results.units import NULL, interval, number, unit_of

OUTCOMES = RESULT_FIELDS - {"command"}  # what is not part of a configuration


@dataclass(frozen=True)
class ComparedSubset:
    """A task and subset. `changes`: of each metric that both sides have. `num_paired`: prompts with records on both
    sides; 0 where records cannot be read."""

    task: str
    subset: str
    first: Row
    second: Row
    num_paired: int
    changes: tuple[MetricChange, ...]

    def change(self, metric: str) -> MetricChange | None:
        return next((each for each in self.changes if each.metric == metric), None)


@dataclass(frozen=True)
class Comparison:
    """`hindrances`: fields that must match and differ; `differing`: all other fields that differ; `unread`: why
    records that exist could not be read."""

    first: str
    second: str
    hindrances: tuple[FieldDifference, ...]
    differing: tuple[FieldDifference, ...]
    compared: tuple[ComparedSubset, ...]
    unread: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "first": self.first, "second": self.second, "comparable": not self.hindrances,
            "must_match": [vars(each) for each in self.hindrances], "differs": [vars(each) for each in self.differing],
            "unread": list(self.unread),
            "compared": [
                {
                    "task": each.task, "subset": each.subset, "n": [each.first.n, each.second.n],
                    "paired_prompts": each.num_paired,
                    "changes": {
                        change.metric: {
                            "first": change.first.model_dump(), "second": change.second.model_dump(),
                            change.kind: change.change.model_dump(), "paired": change.paired,
                            "not_paired_because": change.unpaired,
                            "separable": change.separable if change.has_interval else None,
                        }
                        for change in each.changes
                    },
                }
                for each in self.compared
            ],
        }  # fmt: skip


def compare(first: ComparisonInput, second: ComparisonInput) -> Comparison:
    """Compares the rows of the tasks and subsets that both have.

    Raises ConfigError where there are none, and where both are the same row.
    """
    runs, own, others = RecordedRuns(), first.by_group(), second.by_group()
    places = [place for place in own if place in others]
    if not places:
        names = [", ".join(f"{task} {subset}" for task, subset in list(side)[:4]) for side in (own, others)]
        raise ConfigError(
            f"{first.text} and {second.text} have no task and subset in common: the one has {names[0]}, "
            f"the other {names[1]}"
        )
    if all((own[place].key, own[place].created) == (others[place].key, others[place].created) for place in places):
        raise ConfigError(f"{first.text} and {second.text} are the same rows: name two runs, or two methods of one")
    found = []
    for place in places:
        pairs = pair_up(runs.with_records(own[place], first.file), runs.with_records(others[place], second.file))
        found.append(ComparedSubset(*place, own[place], others[place], pairs.num_prompts, changes(pairs)))
    # each field once: rows of several subsets mostly differ in the same fields
    hindrances = {d.field: d for place in places for d in conditions_that_differ(own[place], others[place])}
    every = {d.field: d for place in places for d in configuration(own[place], others[place])}
    return Comparison(
        first.text, second.text, hindrances=tuple(hindrances.values()),
        differing=tuple(each for name, each in every.items() if name not in hindrances),
        compared=tuple(found), unread=tuple(runs.unread()),
    )  # fmt: skip


def changes(pairs: Pairs) -> tuple[MetricChange, ...]:
    """Returns the changes of speed, acceptance and score, where both sides have a value."""
    quality = pairs.first.row.quality
    names = [*KINDS, *([quality] if quality is not None and quality == pairs.second.row.quality else [])]
    made = [pairs.change(name) for name in names]
    return tuple(each for each in made if each.first.value is not None and each.second.value is not None)


def configuration(first: Row, second: Row) -> list[FieldDifference]:
    """Returns every field that differs, without the fields of the outcome."""
    own, others = (
        {name: value for name, value in leaves(row).items() if name.partition(".")[0] not in OUTCOMES}
        for row in (first, second)
    )
    return differences(own, others)


LABELS = {
    "speedup": ("speed-up", 3), "tokens_per_second": ("tok/s", 1), "tokens_per_second_ar": ("tok/s of AR", 1),
    "mean_acceptance_length": ("τ", 3), "acceptance_rate": ("α", 3),
}  # fmt: skip
IN_SUBSETS = ("speedup", "mean_acceptance_length", "acceptance_rate")
HINDERED = "conditions differ, so changes below may come from them"


def tables(comparison: Comparison) -> list[Table]:
    """Returns a table of the configuration, a table of metrics for every task, and a table of subsets where there
    are several."""
    num_subsets = Counter(each.task for each in comparison.compared)
    wholes = [each for each in comparison.compared if each.subset == ALL or num_subsets[each.task] == 1]
    parts = [each for each in comparison.compared if each not in wholes]
    return [
        configuration_table(comparison),
        *(changes_table(each) for each in wholes),
        *([subsets_table(parts)] if parts else []),
    ]


def configuration_table(comparison: Comparison) -> Table:
    """Returns a table with a line for each field that differs."""
    rows = [
        (mark, each.field, str(each.first), str(each.second))
        for mark, found in (("!", comparison.hindrances), (" ", comparison.differing)) for each in found
    ]  # fmt: skip
    caption = [f"first: {comparison.first}", f"second: {comparison.second}"]
    if comparison.hindrances:
        caption.append(f"! {HINDERED}")
    elif not comparison.differing:
        caption.append("nothing: these are two measurements of one configuration")
    columns = (*words("", folds=False), *words("field", "first", "second"))
    return Table("what differs in the configuration", columns, rows, caption)


def changes_table(each: ComparedSubset) -> Table:
    """Returns a table with a line for each metric of a task and subset."""
    figures = numbers("first", "second", "change", "95 % interval")
    caption = [*_caption(each), *warning_lines([each.first, each.second], ["first", "second"])]
    rows = []
    for change in each.changes:
        unit = unit_of(change.metric)
        label, digits, factor = *LABELS.get(change.metric, (unit.label, unit.digits)), unit.factor
        values = [number(change.first, digits, factor), number(change.second, digits, factor)]
        if change.metric == "speedup":
            values = [marked(value, row) for value, row in zip(values, (each.first, each.second), strict=True)]
        rows.append((label, *values, *_change(change, factor), _remark(change)))
    return Table(f"{each.task} · {each.subset}", (*words("metric", folds=False), *figures, *words("")), rows, caption)


def subsets_table(parts: Sequence[ComparedSubset]) -> Table:
    """Returns a table with a line for each subset."""
    several = len({each.task for each in parts}) > 1
    figures = (f"{LABELS[name][0]}: change\n95 % interval" for name in IN_SUBSETS)
    columns = (*words("subset", folds=False), *numbers("n", "speed-up\nfirst → second", *figures))
    rows = [(f"{each.task} {each.subset}" if several else each.subset, *_subset_cells(each)) for each in parts]
    few = [each for each in parts if each.num_paired < SMALL_SAMPLE and (each.num_paired or _rest_on_few(each))]
    caption = [f"{FEW} in {', '.join(each.subset for each in few)}"] if few else []
    return Table("by subset", columns, rows, caption)


def _subset_cells(each: ComparedSubset) -> list[str]:
    changes = [each.change(name) for name in IN_SUBSETS]
    speedup = changes[0]
    pair = NULL if speedup is None else f"{number(speedup.first, 2)} → {number(speedup.second, 2)}"
    cells = [NULL if change is None else " ".join(filter(None, _change(change, 1.0))) for change in changes]
    return [str(each.num_paired or NULL), pair, *cells]


def _rest_on_few(each: ComparedSubset) -> bool:
    return rests_on_few(each.first) or rests_on_few(each.second)


def _change(change: MetricChange, factor: float) -> tuple[str, str]:
    if change.kind == "ratio":
        return f"× {number(change.change, 3)}", interval(change.change, 3)
    digits = 3 if factor == 1 else 1
    return number(change.change, digits, factor, "+"), interval(change.change, digits, factor, "+")


def _remark(change: MetricChange) -> str:
    if change.change.low is None:
        return "no interval"
    remarks = {"not separable": not change.separable, "not paired": not change.paired}
    return ", ".join(remark for remark, holds in remarks.items() if holds)


def _caption(each: ComparedSubset) -> list[str]:
    if not each.num_paired:
        few = [FEW] if _rest_on_few(each) else []
        return [*few, f"not paired: {', '.join(sorted({c.unpaired for c in each.changes if c.unpaired}))}"]
    left_out = max(each.first.n, each.second.n) - each.num_paired
    lines = [f"paired over {each.num_paired} prompts"]
    if left_out:
        lines[0] += f"; {left_out} that only one side has are left out of the changes"
    if each.num_paired < SMALL_SAMPLE:
        lines.append(FEW)
    return lines
