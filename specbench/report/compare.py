"""Compares two runs, methods or rows: their configurations, numbers and answers."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.table import Table, number_columns, text_columns
from specbench.models.near_ties import first_difference
from specbench.records.records import Generation, Record
from specbench.report.captions import (
    FEW,
    OF_DIFFERENCES,
    differences_of,
    divergence_of,
    marked,
    verdict_word,
    warning_lines,
    width_of,
)
from specbench.results.conditions import FieldDifference, conditions_that_differ, differences, flat_fields
from specbench.results.metric_format import NULL, interval, metric_of, number
from specbench.results.paired import KINDS, MetricChange, Pairs, pair_up
from specbench.results.row import ALL, RESULT_FIELDS, Row
from specbench.results.runs import ComparisonInput, RecordedRuns
from specbench.statistics.bootstrap import SMALL_SAMPLE


@dataclass(frozen=True)
class Agreement:
    """The agreement of paired answers. `num_equal`: pairs with the same tokens. `num_with_steps`: pairs whose steps
    both sides know. `num_same_steps`: those with equally many tokens in every step. `differences`: the first of each
    subset."""

    num_answers: int
    num_equal: int
    num_with_steps: int
    num_same_steps: int
    differences: tuple[str, ...]

    def lines(self) -> list[str]:
        steps = (
            f"{self.num_same_steps} of {self.num_with_steps} have equally many tokens in every step"
            if self.num_with_steps
            else "steps are not compared, since one side does not know them"
        )
        first = f"{self.num_equal} of {counted(self.num_answers, 'answer')} have the same tokens; {steps}"
        return [first, *(f"first difference (first ≠ second): {where}" for where in self.differences)]


def recorded_pairs(pairs: Pairs) -> Iterator[tuple[Record, Generation, Generation]]:
    """Yields the first side's record and the generations of both sides, each read when it is asked for."""
    first, second = pairs.first, pairs.second
    places = [{answer.key: place for place, answer in enumerate(side.own)} for side in (first, second)]
    for key in (answer.key for answer in pairs.own[0]):
        record, other = first.records[places[0][key]], second.records[places[1][key]]
        yield record, record.methods[first.row.method_name], other.methods[second.row.method_name]


def agreement_of(pairs: Iterable[tuple[Record, Generation, Generation]]) -> Agreement:
    """Returns the agreement of paired answers. Steps are compared by their emitted tokens, since engines differ in how
    they count an accepted end token and drafted tokens after the drafter's end token."""
    answers, steps = [], []
    differences: dict[str, str] = {}
    for record, own, other in pairs:
        answers.append(_difference("token", own.token_ids, other.token_ids))
        found = answers[-1]
        if len(own.steps) and len(other.steps):
            sizes = ([step.emitted for step in each.steps] for each in (own, other))
            steps.append(_difference("tokens of step", *sizes))
            found = steps[-1] or found
        if found is not None:
            differences.setdefault(record.subset, f"{record.subset} example {record.example}, {found}")
    return Agreement(len(answers), answers.count(None), len(steps), steps.count(None), tuple(differences.values()))


def _difference(what: str, first: Sequence[int], second: Sequence[int]) -> str | None:
    """Returns the first place at which two lists differ, with both values; None if they are equal."""
    if (place := first_difference(first, second)) is None:
        return None
    values = ("the end" if place == len(each) else str(each[place]) for each in (first, second))
    return f"{what} {place}: {' ≠ '.join(values)}"


@dataclass(frozen=True)
class ComparedSubset:
    """A row of each side with the same task and subset. `num_paired`: the number of prompts with records on both sides;
    0 if records cannot be read. `same_counts`: whether outputs and steps are equal on all of them. `agreement`: of a
    served row and a row of this process. `changes`: of each metric that both sides have."""

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
    def has_few_prompts(self) -> bool:
        if self.num_paired:
            return self.num_paired < SMALL_SAMPLE
        return self.first.has_few_prompts or self.second.has_few_prompts

    @property
    def methods(self) -> str:
        """ "sd", or "sd → ngram" if the sides have different methods; with the level of load."""
        names = " → ".join(dict.fromkeys((self.first.method_name, self.second.method_name)))
        levels = " → ".join(dict.fromkeys((self.first.level, self.second.level)))
        return f"{names} · {levels}" if levels else names

    def change(self, metric: str) -> MetricChange | None:
        return next((each for each in self.changes if each.metric == metric), None)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two inputs. `hindrances`: fields that must match but differ. `differing`: all other fields that
    differ. `alone`: methods that only one side has, if a side has several. `unread`: why existing records could not be
    read."""

    first: str
    second: str
    hindrances: tuple[FieldDifference, ...]
    differing: tuple[FieldDifference, ...]
    alone: tuple[str, ...]
    compared: tuple[ComparedSubset, ...]
    unread: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
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
                    "verdicts": [each.first.verdict, each.second.verdict],
                    **{
                        name: [
                            None if (part := getattr(row, name)) is None else part.model_dump()
                            for row in (each.first, each.second)
                        ]
                        for name in ("differences", "divergence", "batch_width")
                    },
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
    """Compares the `rows_in_common`. Raises ConfigError if there are none, or if both sides are the same rows."""
    runs = RecordedRuns()
    common = rows_in_common(first, second)
    if all((own.key, own.created) == (other.key, other.created) for own, other in common):
        raise ConfigError(
            f"{first.text} and {second.text} are the same rows: name two runs, or two methods of one "
            "(`specbench check` accepts a run as its own baseline)"
        )
    found = []
    for own, other in common:
        pairs = pair_up(runs.with_records(own, first.file), runs.with_records(other, second.file))
        both = list(zip(*pairs.own, strict=True))
        same = bool(both) and all(
            (a.tokens_digest, a.steps_digest) == (b.tokens_digest, b.steps_digest) for a, b in both
        )
        is_one_served = (own.served is None) != (other.served is None)
        agreement = agreement_of(recorded_pairs(pairs)) if both and is_one_served else None
        # The changes of speed, acceptance and score for which both sides have a value.
        scores = [own.quality] if own.quality is not None and own.quality == other.quality else []
        every = [pairs.change(name) for name in (*KINDS, *scores)]
        changes = tuple(each for each in every if each.first.value is not None and each.second.value is not None)
        found.append(ComparedSubset(own, other, pairs.num_prompts, same, agreement, changes))

    def hindering(own: Row, other: Row) -> list[FieldDifference]:
        """Returns the conditions that must match but differ; after different tasks the keys in which these differ."""
        fields = conditions_that_differ(own, other)
        if fields and fields[0].field == "task":
            keys, others = runs.task_keys(own, first.file), runs.task_keys(other, second.file)
            if keys is not None and others is not None:
                of_task = differences(keys, others)
                fields[1:1] = [replace(each, field=f"{own.task_name}: {each.field}") for each in of_task]
        return fields

    hindrances = distinct_differences(common, hindering)
    named, methods = {each.field for each in hindrances}, {row.method_name for pair in common for row in pair}
    return Comparison(
        first.text, second.text, hindrances,
        differing=tuple(each for each in distinct_differences(common, differing_fields) if each.field not in named),
        alone=tuple(dict.fromkeys(name for name in (*first.methods, *second.methods) if name not in methods)),
        compared=tuple(found), unread=tuple(runs.problem_lines()),
    )  # fmt: skip


def rows_in_common(first: ComparisonInput, second: ComparisonInput) -> list[tuple[Row, Row]]:
    """Pairs the rows of both sides by task and subset; also by method if a side has several methods, and by level of
    load if it has several levels. Raises ConfigError if there is no pair."""
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


def distinct_differences(
    common: Sequence[tuple[Row, Row]], differ: Callable[[Row, Row], Sequence[FieldDifference]]
) -> tuple[FieldDifference, ...]:
    """Returns each field in which rows differ once, since the rows of different subsets mostly differ in the same
    fields. One that does not differ equally in all methods begins with the names of its methods."""
    last = {(own.method_name, each.field): each for own, other in common for each in differ(own, other)}
    found: dict[str, tuple[FieldDifference, list[str]]] = {}
    for (method, _), each in last.items():
        found.setdefault(repr(each), (each, []))[1].append(method)
    num_methods = len({own.method_name for own, _ in common})
    return tuple(
        each if len(methods) == num_methods else replace(each, field=f"{', '.join(methods)}: {each.field}")
        for each, methods in found.values()
    )


OUTCOMES = RESULT_FIELDS - {"command"}  # fields that are not part of a configuration


def differing_fields(first: Row, second: Row) -> list[FieldDifference]:
    """Returns every field that differs, except those of the outcome. A missing option equals one that is null."""
    own, others = (
        {name: value for name, value in flat_fields(row).items() if name.partition(".")[0] not in OUTCOMES}
        for row in (first, second)
    )
    absent = ((NULL, "null"), ("null", NULL))
    return [each for each in differences(own, others) if (each.first, each.second) not in absent]


IN_SUBSETS = ("speedup", "speedup_e2e", "mean_acceptance_length", "acceptance_rate")
HINDERED = "these conditions differ and may explain the changes below"


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Returns a table of the configuration, a table of metrics for each task and method, and for each method with
    several subsets a table of these."""
    num_rows = Counter((each.task, each.methods) for each in comparison.compared)
    wholes = [each for each in comparison.compared if each.subset == ALL or num_rows[each.task, each.methods] == 1]
    parts: dict[str, list[ComparedSubset]] = {}
    for each in comparison.compared:
        if each not in wholes:
            parts.setdefault(each.methods, []).append(each)
    return [configuration_table(comparison), *map(changes_table, wholes), *map(subsets_table, parts.values())]


def configuration_table(comparison: Comparison) -> Table:
    rows = [
        (mark, each.field, str(each.first), str(each.second))
        for mark, found in (("!", comparison.hindrances), (" ", comparison.differing)) for each in found
    ]  # fmt: skip
    caption = [f"first: {comparison.first}", f"second: {comparison.second}"]
    if comparison.alone:
        caption.append(f"not compared, since only one side has these methods: {', '.join(comparison.alone)}")
    if comparison.hindrances:
        caption.append(f"! {HINDERED}")
    elif not comparison.differing:
        caption.append("nothing differs: these are two measurements of one configuration")
    columns = (*text_columns("", folds=False), *text_columns("field", "first", "second"))
    return Table("differences of the configurations", columns, rows, caption, num_keys=2)


def changes_table(each: ComparedSubset) -> Table:
    figures = number_columns("first", "second", "change", "95 % interval")
    caption = [*_caption(each), *warning_lines([each.first, each.second], ["first", "second"])]
    rows = []
    for change in each.changes:
        metric = metric_of(change.metric)
        label, digits, factor = metric.label, metric.digits, metric.factor
        values = [number(change.first, digits, factor), number(change.second, digits, factor)]
        if change.metric == "speedup":
            values = [marked(value, row) for value, row in zip(values, (each.first, each.second), strict=True)]
        remarks = {"not separable": not change.separable, "not paired": not change.paired}
        remark = ", ".join(remark for remark, holds in remarks.items() if holds)
        rows.append((label, *values, *_change(change, factor), remark if change.has_interval else "no interval"))
    columns = (*text_columns("metric", folds=False), *figures, *text_columns(""))
    return Table(f"{each.task} · {each.subset} · {each.methods}", columns, rows, caption)


def subsets_table(parts: Sequence[ComparedSubset]) -> Table:
    several = len({each.task for each in parts}) > 1
    is_served = any(each.first.served is not None for each in parts)  # where the end counts: it holds queue and prefill
    names = [name for name in IN_SUBSETS if name != "speedup_e2e" or is_served]
    figures = (f"{metric_of(name).label}: change\n95 % interval" for name in names)
    columns = (*text_columns("subset"), *number_columns("n", "speed-up\nfirst → second", *figures))
    rows = []
    for each in parts:
        changes = [each.change(name) for name in names]
        speedup = changes[0]
        pair = NULL if speedup is None else f"{number(speedup.first, 2)} → {number(speedup.second, 2)}"
        cells = [NULL if change is None else " ".join(filter(None, _change(change, 1.0))) for change in changes]
        name = f"{each.task} {each.subset}" if several else each.subset
        rows.append((name, str(each.num_paired or NULL), pair, *cells))
    few = [each.subset for each in parts if each.has_few_prompts]
    caption = [f"{FEW} in {', '.join(few)}"] if few else []
    return Table(f"by subset · {parts[0].methods}", columns, rows, caption)


def _change(change: MetricChange, factor: float) -> tuple[str, str]:
    if change.kind == "ratio":
        return f"× {number(change.change, 3)}", interval(change.change, 3)
    digits = 3 if factor == 1 else 1
    return number(change.change, digits, factor, "+"), interval(change.change, digits, factor, "+")


def _caption(each: ComparedSubset) -> list[str]:
    lines = []
    if not each.num_paired:
        lines.append(f"not paired: {', '.join(sorted({c.unpaired for c in each.changes if c.unpaired}))}")
    else:
        left_out = max(each.first.n, each.second.n) - each.num_paired
        without = f"; the changes leave out {left_out} that only one side has" if left_out else ""
        lines.append(f"paired over {counted(each.num_paired, 'prompt')}{without}")
    if each.same_counts:
        lines.append("all outputs and steps are equal; the intervals account for prompts that were not measured")
    if each.agreement is not None:
        lines += each.agreement.lines()
    verdicts = [verdict_word(row) for row in (each.first, each.second)]
    if any(row.verdict in OF_DIFFERENCES for row in (each.first, each.second)):
        lines.append(f"verdict: {verdicts[0]} → {verdicts[1]}")
        lines += dict.fromkeys(filter(None, map(divergence_of, (each.first, each.second))))
        for text_of in (differences_of, width_of):
            texts = [text_of(row) for row in (each.first, each.second)]
            if texts[0] != texts[1]:
                texts = [f"{side}: {text}" for side, text in zip(("first", "second"), texts, strict=True) if text]
            lines += dict.fromkeys(filter(None, texts))
    return [*lines, *([FEW] if each.has_few_prompts else [])]
