"""A comparison as tables: the configuration, the whole of every task, and its subsets."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.results.bootstrap import SMALL_SAMPLE, Metric
from specbench.results.captions import FEW, rests_on_few
from specbench.results.comparable import Difference
from specbench.results.compare import Compared, Comparison
from specbench.results.paired import Change
from specbench.results.tables import doubt_lines, marked
from specbench.results.units import NULL, number, unit_of

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
        *(changes_table(comparison, each) for each in wholes),
        *([subsets_table(parts)] if parts else []),
    ]


def _alone(each: Compared, compared: Sequence[Compared]) -> bool:
    return not any(other.task == each.task and other.subset != each.subset for other in compared)


def configuration_table(comparison: Comparison) -> Table:
    table = _table("what differs in the configuration")
    table.add_column("", no_wrap=True)
    table.add_column("field", overflow="fold")
    table.add_column("first", overflow="fold")
    table.add_column("second", overflow="fold")
    for mark, found in (("!", comparison.hindrances), (" ", comparison.differing)):
        for each in found:
            table.add_row(*(Text(cell) for cell in (mark, each.field, *_values(each))))
    lines = [f"first: {comparison.first}", f"second: {comparison.second}"]
    if comparison.hindrances:
        lines.append(f"! {HINDERED}")
    elif not comparison.differing:
        lines.append("nothing: these are two measurements of one configuration")
    table.caption = Text("\n".join(lines))
    return table


def _values(each: Difference) -> tuple[str, str]:
    return str(each.first), str(each.second)


def changes_table(comparison: Comparison, each: Compared) -> Table:
    table = _table(f"{each.task} · {each.subset}")
    table.add_column("metric", no_wrap=True)
    for header in ("first", "second", "change", "95 % interval"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for change in each.changes:
        label, digits, factor = _unit(change.metric)
        values = [number(change.first, digits, factor), number(change.second, digits, factor)]
        if change.metric == "speedup":
            values = [marked(value, row) for value, row in zip(values, (each.first, each.second), strict=True)]
        cells = (label, *values, *_change(change, factor), _said(change))
        table.add_row(*(Text(cell) for cell in cells))
    table.caption = Text("\n".join([*_caption(each), *doubt_lines([each.first, each.second], ["first", "second"])]))
    return table


def subsets_table(parts: Sequence[Compared]) -> Table:
    several = len({each.task for each in parts}) > 1
    table = _table("by subset")
    table.add_column("subset", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("speed-up\nfirst → second", justify="right", no_wrap=True)
    for name in IN_SUBSETS:
        table.add_column(f"{LABELS[name][0]}: change\n95 % interval", justify="right", no_wrap=True)
    for each in parts:
        changes = [each.change(name) for name in IN_SUBSETS]
        speedup = changes[0]
        pair = NULL if speedup is None else f"{number(speedup.first, 2)} → {number(speedup.second, 2)}"
        cells = [
            NULL if change is None else " ".join(part for part in _change(change, 1.0) if part) for change in changes
        ]
        name = f"{each.task} {each.subset}" if several else each.subset
        table.add_row(*(Text(cell) for cell in (name, str(each.num_paired or NULL), pair, *cells)))
    few = [each for each in parts if each.num_paired < SMALL_SAMPLE and (each.num_paired or _rest_on_few(each))]
    if few:
        names = ", ".join(each.subset for each in few)
        table.caption = Text(f"{FEW} in {names}")
    return table


def _rest_on_few(each: Compared) -> bool:
    return rests_on_few(each.first) or rests_on_few(each.second)


def _change(change: Change, factor: float) -> tuple[str, str]:
    if change.kind == "ratio":
        return f"× {number(change.change, 3)}", _interval(change.change, 3, 1.0, "")
    digits = 3 if factor == 1 else 1
    return f"{_signed(change.change.value, digits, factor)}", _interval(change.change, digits, factor, "+")


def _interval(metric: Metric, digits: int, factor: float, sign: str) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f"[{factor * metric.low:{sign}.{digits}f}, {factor * metric.high:{sign}.{digits}f}]"


def _signed(value: float | None, digits: int, factor: float) -> str:
    return NULL if value is None else f"{factor * value:+.{digits}f}"


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


def _table(title: str) -> Table:
    return Table(
        title=Text(title), caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )  # fmt: skip
