"""The table of a sweep: a row for each point and method, with what changed since the first point."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.core.console import counted
from specbench.core.errors import ConfigError, nearest
from specbench.core.table import Column, Table, in_sections, number_columns, text_columns
from specbench.report.captions import (
    conditions_line,
    few_prompts_line,
    marked,
    score_heading,
    warning_lines,
)
from specbench.report.tables import RunRows
from specbench.results.metric_format import NULL, metric_of, number, score_pair, with_interval
from specbench.results.paired import KINDS
from specbench.results.sweeps import Sweep, SweptRow, Values, read_sweeps, rows_of_points
from specbench.specs.sweep import CONTEXT, value_text

SHOWN = ("speedup", "mean_acceptance_length")
BEYOND = "‡"
DIGITS = {"mean_acceptance_length": 2, "speedup": 2}


@dataclass(frozen=True)
class RowsOfSweep(RunRows):
    """The rows of all points of a sweep, whose tables are those of the sweep. `folder`: that of the points."""

    folder: Path

    @classmethod
    def read(cls, folder: Path) -> "RowsOfSweep":
        return cls(rows_of_points(folder), folder)

    def tables(self) -> Iterator[Table]:
        """Yields a table of each task: a row for each point and method, seeds pooled."""
        yield from map(sweep_table, read_sweeps([self.folder]))


def sweep_table(sweep: Sweep, metrics: Sequence[str] = SHOWN, for_readers: bool = False) -> Table:
    """Returns the table of a task. `for_readers`: warnings do not say what to do. Raises ConfigError for a metric that
    no row has."""
    rows = [each.row for each in sweep.rows]
    known = {name for row in rows for name in row.metrics if row.value(name) is not None}
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"--metric {metric}: no row of the sweep has it: {nearest(metric, known)}")
    has_subsets = len({row.subset for row in rows}) > 1
    has_changes = len(sweep.points) > 1
    columns: list[Column] = [
        *text_columns(*sweep.conditions, folds=False),
        *text_columns(*(["subset"] if has_subsets else []), "method", folds=False),
        *number_columns("prompt\ntokens", "tok/s\nar"),
    ]
    for metric in metrics:
        heading = metric_of(metric).label
        columns += number_columns(f"{heading}\n95 % interval")
        columns += number_columns(f"{heading} {sign_of(metric)}\nfirst point") if has_changes else ()
    columns += number_columns(f"{score_heading(rows)}\nar → method")
    cells = [
        [
            *(value_text(value) for _, value in swept.values), *([swept.row.subset] if has_subsets else []),
            f"{swept.row.shown_method} {BEYOND}" if share_beyond(swept) else swept.row.shown_method,
            NULL if swept.prompt_tokens is None else f"{swept.prompt_tokens:.0f}",
            number(swept.row.metric("tokens_per_second_ar"), 1),
            *_metric_cells(sweep, swept, metrics, has_changes), score_pair(swept.row.metrics, swept.row.quality),
        ]
        for swept in sweep.rows
    ]  # fmt: skip
    title = f"{sweep.task}: sweep of {', '.join(sweep.conditions) or 'seeds'}"
    sections = in_sections(cells) if sweep.conditions else cells
    num_keys = len(sweep.conditions) + has_subsets + 1
    return Table(title, columns, sections, list(_caption(sweep, metrics, for_readers)), num_keys=num_keys)


def sign_of(metric: str) -> str:
    return "÷" if KINDS.get(metric, "difference") == "ratio" else "−"


def _metric_cells(sweep: Sweep, swept: SweptRow, metrics: Sequence[str], has_changes: bool) -> Iterator[str]:
    for place, metric in enumerate(metrics):
        unit = metric_of(metric)
        digits = DIGITS.get(metric, unit.digits)
        text = with_interval(swept.row.metric(metric), digits, unit.factor)
        yield marked(text, swept.row) if place == 0 else text
        if has_changes:
            change = sweep.change(swept, metric)
            factor = 1.0 if sign_of(metric) == "÷" else unit.factor
            paired = change is not None and change.paired
            yield with_interval(change.change, digits, factor) if change is not None and paired else NULL


def share_beyond(swept: SweptRow) -> float | None:
    """Returns the share of a head's tokens beyond the texts that it was made for; None if there are none."""
    context = swept.row.context
    return (context.share_beyond if context is not None else None) or None


def point_name(values: Values) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in values)


def _caption(sweep: Sweep, metrics: Sequence[str], for_readers: bool) -> Iterator[str]:
    rows = [each.row for each in sweep.rows]
    yield conditions_line(rows)
    fewest, most = min(row.n for row in rows), max(row.n for row in rows)
    seeds = sorted({seed for each in sweep.rows for seed in each.seeds})
    repeats = max(row.repeats for row in rows)
    yield "".join((
        counted(most, "prompt") if fewest == most else f"{fewest} to {most} prompts",
        f", {counted(repeats, 'answer')} each" if repeats > 1 else "",
        f", pooled over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else "", "; intervals resample prompts",
    ))  # fmt: skip
    if CONTEXT in sweep.conditions:
        yield (
            "context: the most tokens of a prompt, in the target's tokens; a longer one loses its middle, so that its "
            "beginning and its end stay, and with them the instruction and the question"
        )
        short = {each.values: each.num_short for each in sweep.rows if each.num_short}
        if short:
            listed = "; ".join(f"{number} at {point_name(values)}" for values, number in short.items())
            yield f"prompts that are not longer than the context, and were not cut: {listed}"
    if len(sweep.points) > 1:
        yield from _changes_lines(sweep, metrics)
    lengths = {
        each.row.method_name: each.row.context.trained
        for each in sweep.rows if share_beyond(each) and each.row.context is not None
    }  # fmt: skip
    for name, length in lengths.items():
        shares = ", ".join(
            f"{share:.0%} at {point_name(each.values)}"
            for each in sweep.rows
            if each.row.method_name == name and (share := share_beyond(each))
        )
        yield (
            f"{BEYOND} {name}: tokens beyond the {length} that its head was made for (max_position_embeddings of its "
            f"config.json): {shares}"
        )
    yield from few_prompts_line(rows)
    names = [
        f"{each.row.method_name} ({point_name(each.values)})" if each.values else each.row.method_name
        for each in sweep.rows
    ]
    yield from warning_lines(rows, names, for_readers)


def _changes_lines(sweep: Sweep, metrics: Sequence[str]) -> Iterator[str]:
    signs = " or ".join(dict.fromkeys(map(sign_of, metrics)))
    same = "about the same documents" if CONTEXT in sweep.conditions else "to the same prompts"
    yield f"{signs} first point: the change since {point_name(sweep.points[0])}; answers {same} are paired, AR included"
    changes = [sweep.change(each, metric) for each in sweep.rows for metric in metrics]
    reasons = dict.fromkeys(change.unpaired for change in changes if change is not None and change.unpaired)
    for reason in reasons:
        yield f"{NULL} no change is shown where answers cannot be paired: {reason}"
