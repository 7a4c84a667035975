"""A comparison as tables: the configuration, the whole of every task, and its subsets."""

from collections.abc import Sequence

from specbench.core.table import Table, numbers, words
from specbench.results.bootstrap import SMALL_SAMPLE
from specbench.results.captions import FEW, rests_on_few
from specbench.results.compare import Compared, Comparison
from specbench.results.paired import Change
from specbench.results.tables import marked, warning_lines
from specbench.results.units import NULL, interval, number, unit_of

LABELS = {
    "speedup": ("speed-up", 3), "tokens_per_second": ("tok/s", 1), "tokens_per_second_ar": ("tok/s of AR", 1),
    "mean_acceptance_length": ("τ", 3), "acceptance_rate": ("α", 3),
}  # fmt: skip
IN_SUBSETS = ("speedup", "mean_acceptance_length", "acceptance_rate")
HINDERED = "what must match does not: a change below is that of the conditions as well"


def tables(comparison: Comparison) -> list[Table]:
    """What differs first; then a line per metric for every task, and a line per subset where there are several."""
    wholes = [each for each in comparison.compared if each.subset == "all" or _alone(each, comparison.compared)]
    parts = [each for each in comparison.compared if each not in wholes]
    return [
        configuration_table(comparison),
        *(changes_table(each) for each in wholes),
        *([subsets_table(parts)] if parts else []),
    ]


def _alone(each: Compared, compared: Sequence[Compared]) -> bool:
    return not any(other.task == each.task and other.subset != each.subset for other in compared)


def configuration_table(comparison: Comparison) -> Table:
    """A line for each field that differs."""
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


def changes_table(each: Compared) -> Table:
    """A line for each metric of a task and subset."""
    figures = numbers("first", "second", "change", "95 % interval")
    caption = [*_caption(each), *warning_lines([each.first, each.second], ["first", "second"])]
    rows = [_change_cells(each, change) for change in each.changes]
    return Table(f"{each.task} · {each.subset}", (*words("metric", folds=False), *figures, *words("")), rows, caption)


def _change_cells(each: Compared, change: Change) -> tuple[str, ...]:
    label, digits, factor = _unit(change.metric)
    values = [number(change.first, digits, factor), number(change.second, digits, factor)]
    if change.metric == "speedup":
        values = [marked(value, row) for value, row in zip(values, (each.first, each.second), strict=True)]
    return label, *values, *_change(change, factor), _said(change)


def subsets_table(parts: Sequence[Compared]) -> Table:
    """A line for each subset."""
    several = len({each.task for each in parts}) > 1
    figures = (f"{LABELS[name][0]}: change\n95 % interval" for name in IN_SUBSETS)
    columns = (*words("subset", folds=False), *numbers("n", "speed-up\nfirst → second", *figures))
    rows = [(f"{each.task} {each.subset}" if several else each.subset, *_subset_cells(each)) for each in parts]
    few = [each for each in parts if each.num_paired < SMALL_SAMPLE and (each.num_paired or _rest_on_few(each))]
    caption = [f"{FEW} in {', '.join(each.subset for each in few)}"] if few else []
    return Table("by subset", columns, rows, caption)


def _subset_cells(each: Compared) -> list[str]:
    changes = [each.change(name) for name in IN_SUBSETS]
    speedup = changes[0]
    pair = NULL if speedup is None else f"{number(speedup.first, 2)} → {number(speedup.second, 2)}"
    cells = [NULL if change is None else " ".join(filter(None, _change(change, 1.0))) for change in changes]
    return [str(each.num_paired or NULL), pair, *cells]


def _rest_on_few(each: Compared) -> bool:
    return rests_on_few(each.first) or rests_on_few(each.second)


def _change(change: Change, factor: float) -> tuple[str, str]:
    if change.kind == "ratio":
        return f"× {number(change.change, 3)}", interval(change.change, 3)
    digits = 3 if factor == 1 else 1
    return number(change.change, digits, factor, "+"), interval(change.change, digits, factor, "+")


def _said(change: Change) -> str:
    if change.change.low is None:
        return "no interval"
    words = "" if change.separable else "not separable"
    return words if change.paired else f"{words}, not paired".removeprefix(", ")


def _unit(metric: str) -> tuple[str, int, float]:
    if metric in LABELS:
        return *LABELS[metric], 1.0
    unit = unit_of(metric)
    return unit.label, unit.digits, unit.factor


def _caption(each: Compared) -> list[str]:
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
