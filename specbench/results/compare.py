"""Compares two runs, methods or rows: what differs in configuration, in numbers and in answers."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from specbench.core.console import counted
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
from specbench.results.verdict import first_difference
from specbench.running.records import EMITTED, Generation, Record


@dataclass(frozen=True)
class Agreement:
    """`num_equal` of `num_answers` pairs have the same tokens; `num_same_steps` of the `num_with_steps` pairs whose
    steps both sides know have as many tokens in each. `differences`: the first one of each subset."""

    num_answers: int
    num_equal: int
    num_with_steps: int
    num_same_steps: int
    differences: tuple[str, ...]


def agreement_of(records: Sequence[Record], first: Sequence[Generation], second: Sequence[Generation]) -> Agreement:
    """Returns the agreement of pairs of answers. Steps are compared by their emitted tokens: engines count drafted
    tokens after the drafter's end token, and an accepted end token, in several ways."""
    answers, steps = [], []
    differences: dict[str, str] = {}
    for record, own, other in zip(records, first, second, strict=True):
        tokens_differ, steps_differ = _answers_differ(own["token_ids"], other["token_ids"]), None
        answers.append(tokens_differ)
        if own["steps"] and other["steps"]:
            steps_differ = _steps_differ(own["steps"], other["steps"])
            steps.append(steps_differ)
        if found := steps_differ or tokens_differ:
            differences.setdefault(record["subset"], f"{record['subset']} example {record['example']}, {found}")
    return Agreement(
        len(answers), answers.count(None), len(steps), steps.count(None), tuple(differences.values())
    )  # fmt: skip


def _answers_differ(own: Sequence[int], other: Sequence[int]) -> str | None:
    place = first_difference(own, other)
    if place is None:
        return None
    tokens = ("its end" if place == len(ids) else f"token {ids[place]}" for ids in (own, other))
    return f"position {place}: {' ≠ '.join(tokens)}"


def _steps_differ(own: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> str | None:
    for place, pair in enumerate(zip_longest(own, other)):
        sizes = ["no step" if step is None else counted(step[EMITTED], "token") for step in pair]
        if sizes[0] != sizes[1]:
            return f"step {place}: {' ≠ '.join(sizes)}"
    return None


def agreement_lines(found: Agreement) -> list[str]:
    """Returns the lines of a caption."""
    steps = (
        f"{found.num_same_steps} of {found.num_with_steps} have as many tokens in each step"
        if found.num_with_steps
        else "steps are not compared, since one side does not know them"
    )
    lines = [f"{found.num_equal} of {counted(found.num_answers, 'answer')} have the same tokens; {steps}"]
    return lines + [f"first difference (first ≠ second): {where}" for where in found.differences]


OUTCOMES = RESULT_FIELDS - {"command"}  # what is not part of a configuration


@dataclass(frozen=True)
class ComparedSubset:
    """A row of each side, of one task and subset. `changes`: of each metric that both sides have. `num_paired`: prompts
    with records on both sides; 0 where records cannot be read. `same_counts`: whether the outputs and the steps are
    equal on all of them. `agreement`: of a served row and one of this process."""

    first: Row
    second: Row
    num_paired: int
    same_counts: bool
    agreement: Agreement | None
    changes: tuple[MetricChange, ...]

    @property
    def task(self) -> str:
        return self.first.task_name

    @property
    def subset(self) -> str:
        return self.first.subset

    @property
    def methods(self) -> str:
        """ "sd", or "sd → ngram" where the sides have different methods, and the level of load."""
        names = " → ".join(dict.fromkeys((self.first.method_name, self.second.method_name)))
        levels = " → ".join(dict.fromkeys((self.first.level, self.second.level)))
        return f"{names} · {levels}" if levels else names

    def change(self, metric: str) -> MetricChange | None:
        return next((each for each in self.changes if each.metric == metric), None)


@dataclass(frozen=True)
class Comparison:
    """`hindrances`: fields that must match and differ; `differing`: all other fields that differ; `alone`: methods that
    only one side has, if a side has several; `unread`: why records that exist could not be read."""

    first: str
    second: str
    hindrances: tuple[FieldDifference, ...]
    differing: tuple[FieldDifference, ...]
    alone: tuple[str, ...]
    compared: tuple[ComparedSubset, ...]
    unread: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "first": self.first, "second": self.second, "comparable": not self.hindrances,
            "must_match": [vars(each) for each in self.hindrances], "differs": [vars(each) for each in self.differing],
            "methods_of_one_side": list(self.alone), "unread": list(self.unread),
            "compared": [
                {
                    "task": each.task, "subset": each.subset, "n": [each.first.n, each.second.n],
                    **({"loads": [each.first.level, each.second.level]} if each.first.level else {}),
                    "methods": [each.first.method_name, each.second.method_name],
                    "paired_prompts": each.num_paired,
                    **({"agreement": vars(each.agreement)} if each.agreement else {}),
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
    """Compares the rows that `rows_in_common` returns. Raises ConfigError also where both sides are the same rows."""
    runs, common = RecordedRuns(), rows_in_common(first, second)
    if all((own.key, own.created) == (other.key, other.created) for own, other in common):
        raise ConfigError(f"{first.text} and {second.text} are the same rows: name two runs, or two methods of one")
    found = []
    for own, other in common:
        pairs = pair_up(runs.with_records(own, first.file), runs.with_records(other, second.file))
        found.append(
            ComparedSubset(own, other, pairs.num_prompts, have_same_counts(pairs), agreement(pairs), changes(pairs))
        )
    hindrances = distinct(common, conditions_that_differ)
    named, methods = {each.field for each in hindrances}, {row.method_name for pair in common for row in pair}
    return Comparison(
        first.text, second.text, hindrances,
        differing=tuple(each for each in distinct(common, configuration) if each.field not in named),
        alone=tuple(dict.fromkeys(name for name in (*first.methods, *second.methods) if name not in methods)),
        compared=tuple(found), unread=tuple(runs.unread()),
    )  # fmt: skip


def rows_in_common(first: ComparisonInput, second: ComparisonInput) -> list[tuple[Row, Row]]:
    """Returns the rows of both sides with the same task and subset; where a side has several methods also with the
    same method, and where it has several levels of load with the same level. Raises ConfigError where there are none.
    """
    several = max(len(first.methods), len(second.methods)) > 1
    has_levels = any(len({row.level for row in side.rows}) > 1 for side in (first, second))

    def place(row: Row) -> tuple[str, ...]:
        own = (row.task_name, row.subset, *([row.method_name] if several else []))
        return (*own, row.level) if has_levels and row.level else own

    others = {place(row): row for row in second.rows}
    found = [(row, others[place(row)]) for row in first.rows if place(row) in others]
    if found:
        return found
    own, other = (", ".join(dict.fromkeys(" ".join(place(row)) for row in side.rows)) for side in (first, second))
    raise ConfigError(
        f"{first.text} and {second.text} have no task{',' if several else ' and'} subset"
        f"{' and method' if several else ''} in common: the first has {own:.200}, the second {other:.200}"
        + (": to compare two methods, name one of each, as PATH:METHOD" if several else "")
    )


def have_same_counts(pairs: Pairs) -> bool:
    """Returns whether the tokens and steps are equal on every prompt of which both sides have records."""
    own, others = pairs.generations() if pairs.records[0] else ([], [])
    names = ("token_ids", "steps")
    return bool(own) and all(a[name] == b[name] for a, b in zip(own, others, strict=True) for name in names)


def distinct(
    common: Sequence[tuple[Row, Row]], differ: Callable[[Row, Row], Sequence[FieldDifference]]
) -> tuple[FieldDifference, ...]:
    """Returns each field in which rows differ once, since rows of several subsets mostly differ in the same fields.
    Where only some of several methods differ, or with other values, the field begins with the method's name."""
    by_method: dict[str, dict[str, FieldDifference]] = {own.method_name: {} for own, _ in common}
    for own, other in common:
        by_method[own.method_name] |= {each.field: each for each in differ(own, other)}
    found: list[FieldDifference] = []
    for name in dict.fromkeys(name for fields in by_method.values() for name in fields):
        having = {method: fields[name] for method, fields in by_method.items() if name in fields}
        first, *others = having.values()
        if len(having) == len(by_method) and all(each == first for each in others):
            found.append(first)
        else:
            found += [replace(each, field=f"{method}: {name}") for method, each in having.items()]
    return tuple(found)


def agreement(pairs: Pairs) -> Agreement | None:
    """Returns how many answers and steps are equal; None unless a server made the answers of exactly one side."""
    if not pairs.records[0] or (pairs.first.row.served is None) == (pairs.second.row.served is None):
        return None
    second, first = pairs.generations()
    return agreement_of(pairs.records[0], first, second)


def changes(pairs: Pairs) -> tuple[MetricChange, ...]:
    """Returns the changes of speed, acceptance and score, where both sides have a value."""
    quality = pairs.first.row.quality
    names = [*KINDS, *([quality] if quality is not None and quality == pairs.second.row.quality else [])]
    made = [pairs.change(name) for name in names]
    return tuple(each for each in made if each.first.value is not None and each.second.value is not None)


def configuration(first: Row, second: Row) -> list[FieldDifference]:
    """Returns every field that differs, without the fields of the outcome. An option that one side does not have and
    that is null on the other does not differ."""
    own, others = (
        {name: value for name, value in leaves(row).items() if name.partition(".")[0] not in OUTCOMES}
        for row in (first, second)
    )
    absent = ((NULL, "null"), ("null", NULL))
    return [each for each in differences(own, others) if (each.first, each.second) not in absent]


LABELS = {
    "speedup": ("speed-up", 3), "tokens_per_second": ("tok/s", 1), "tokens_per_second_ar": ("tok/s of AR", 1),
    "mean_acceptance_length": ("τ", 3), "acceptance_rate": ("α", 3), "tpot_ratio": ("TPOT ratio", 3),
    "e2e_ratio": ("E2E ratio", 3),
}  # fmt: skip
IN_SUBSETS = ("speedup", "mean_acceptance_length", "acceptance_rate")
HINDERED = "conditions differ, so changes below may come from them"


def tables(comparison: Comparison) -> list[Table]:
    """Returns a table of the configuration, a table of metrics for every task and method, and a table of the subsets of
    every method that has several."""
    num_rows = Counter((each.task, each.methods) for each in comparison.compared)
    wholes = [each for each in comparison.compared if each.subset == ALL or num_rows[each.task, each.methods] == 1]
    parts: dict[str, list[ComparedSubset]] = {}
    for each in comparison.compared:
        if each not in wholes:
            parts.setdefault(each.methods, []).append(each)
    return [configuration_table(comparison), *map(changes_table, wholes), *map(subsets_table, parts.values())]


def configuration_table(comparison: Comparison) -> Table:
    """Returns a table with a line for each field that differs."""
    rows = [
        (mark, each.field, str(each.first), str(each.second))
        for mark, found in (("!", comparison.hindrances), (" ", comparison.differing)) for each in found
    ]  # fmt: skip
    caption = [f"first: {comparison.first}", f"second: {comparison.second}"]
    if comparison.alone:
        caption.append(f"not compared, since only one side has them: {', '.join(comparison.alone)}")
    if comparison.hindrances:
        caption.append(f"! {HINDERED}")
    elif not comparison.differing:
        caption.append("nothing: these are two measurements of one configuration")
    columns = (*words("", folds=False), *words("field", "first", "second"))
    return Table("what differs in the configuration", columns, rows, caption, num_keys=2)


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
    columns = (*words("metric", folds=False), *figures, *words(""))
    return Table(f"{each.task} · {each.subset} · {each.methods}", columns, rows, caption)


def subsets_table(parts: Sequence[ComparedSubset]) -> Table:
    """Returns a table with a line for each subset of a method."""
    several = len({each.task for each in parts}) > 1
    figures = (f"{LABELS[name][0]}: change\n95 % interval" for name in IN_SUBSETS)
    columns = (*words("subset"), *numbers("n", "speed-up\nfirst → second", *figures))
    rows = [(f"{each.task} {each.subset}" if several else each.subset, *_subset_cells(each)) for each in parts]
    few = [each for each in parts if each.num_paired < SMALL_SAMPLE and (each.num_paired or _rest_on_few(each))]
    caption = [f"{FEW} in {', '.join(each.subset for each in few)}"] if few else []
    return Table(f"by subset · {parts[0].methods}", columns, rows, caption)


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
    lines = [f"paired over {counted(each.num_paired, 'prompt')}"]
    if left_out:
        lines[0] += f"; {left_out} that only one side has are left out of the changes"
    if each.same_counts:
        lines.append("outputs and steps are equal on all of them; the intervals cover other prompts of the task too")
    if each.agreement is not None:
        lines += agreement_lines(each.agreement)
    if each.num_paired < SMALL_SAMPLE:
        lines.append(FEW)
    return lines
