"""One table of several tasks: a row for each method, a group of columns for each task."""

from collections.abc import Sequence
from dataclasses import replace

from specbench.core.errors import ConfigError, nearest
from specbench.core.table import Table
from specbench.publish.paper.rows import Group, PaperRows
from specbench.report.captions import conditions_line, few_prompts_line, marked, warning_lines
from specbench.report.columns import RowColumn, score_column
from specbench.report.ranking import rank_rows, unranked_line
from specbench.report.sweep import sweep_table
from specbench.results.metric_format import metric_of, with_interval
from specbench.results.row import Row

DIGITS = {"mean_acceptance_length": 2, "speedup": 2}


def paper_table(rows: PaperRows, metrics: Sequence[str]) -> Table:
    """Returns the table. Raises ConfigError for an unknown metric, and for no metric."""
    groups = rows.groups(metrics[0] if metrics else "speedup", records=False)
    every = [row for group in groups for row in group.rows]
    known = {name for row in every for name in row.metrics if row.has(name)} | {"quality"}
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"--metric {metric}: {rows.named_sources}: no row has it: {nearest(metric, known)}")
    if not metrics:
        raise ConfigError("--metric: is empty: give metrics such as speedup,mean_acceptance_length")
    series = list(dict.fromkeys(name for group in groups for name in group.series))
    columns = [RowColumn("method", folds=False)]
    cells, bold = [[name] for name in series], set[tuple[int, int]]()
    for group in groups:
        by_name = dict(zip(group.series, group.rows, strict=True))
        for place, metric in enumerate(metrics):
            name = group.rows[0].quality or metric if metric == "quality" else metric
            column = replace(_column(name, group.rows, is_first=place == 0), group=group.label)
            columns.append(column)
            for line, method in zip(cells, series, strict=True):
                line.append(column.cell(by_name[method]) if method in by_name else "")
            if (best := _separable(rows, group, name)) is not None:
                bold.add((series.index(best), len(columns) - 1))
    *first, last = dict.fromkeys(map(_title, metrics))
    title = " and ".join(filter(None, (", ".join(first), last)))
    return Table(f"{title[:1].upper()}{title[1:]}", columns, cells, _notes(groups, metrics, bool(bold)), bold)


def sweep_tables(rows: PaperRows, metrics: Sequence[str]) -> list[Table]:
    """Returns the table of each task of a sweep. Raises ConfigError for an unknown metric, and for no metric."""
    if not metrics:
        raise ConfigError("--metric: is empty: give metrics such as speedup,mean_acceptance_length")
    return [sweep_table(sweep, metrics, for_readers=True) for sweep in rows.sweeps()]


def _title(metric: str) -> str:
    if metric == "quality":
        return "scores"
    known = metric_of(metric)
    return {"speedup": "speed-up over autoregressive decoding", "mean_acceptance_length": "mean acceptance length τ",
            "acceptance_rate": "acceptance rate α"}.get(metric, known.label.replace("_", " "))  # fmt: skip


def _column(metric: str, rows: Sequence[Row], *, is_first: bool) -> RowColumn:
    """Returns the column of a metric with its intervals. The marks of warnings stand in the first column of a task."""
    if metric == rows[0].quality:
        heading = score_column(rows).heading.replace("\n", " ")
    else:
        heading = metric_of(metric).label.replace("_", " ")
    unit = metric_of(metric)
    digits = DIGITS.get(metric, unit.digits)

    def cell(row: Row) -> str:
        text = with_interval(row.metrics.get(metric), digits, unit.factor)
        return marked(text, row) if is_first else text

    return RowColumn(heading, True, cell=cell, metric=metric)


def _separable(rows: PaperRows, group: Group, metric: str) -> str | None:
    """Returns the series that is separable from all others of its group, prompt by prompt where there are records."""
    files = {id(row): file for row, file in rows.chosen}
    sides = [rows.runs.with_records(row, files[id(row)]) for row in group.rows]
    order = rank_rows(sides, metric)
    if len(order) < 2 or (order[0].best, order[0].worst) != (1, 1):
        return None
    return next(name for name, row in zip(group.series, group.rows, strict=True) if row is order[0].row)


def _notes(groups: Sequence[Group], metrics: Sequence[str], has_bold: bool) -> list[str]:
    named = [
        (row, f"{name} ({group.label})" if len(groups) > 1 else name)
        for group in groups for name, row in zip(group.series, group.rows, strict=True)
    ]  # fmt: skip
    rows = [row for row, _ in named]
    numbers = ", ".join(f"{group.label} {group.rows[0].n}" for group in groups)
    few = [group.label for group in groups if any(row.has_few_prompts for row in group.rows)]
    return [
        conditions_line(rows),
        f"prompts: {numbers}; in brackets: 95 % intervals over prompts",
        *(["bold: separable from all others of its column (paired intervals, corrected for all pairs of rows)"]
          if has_bold else []),
        *unranked_line(rows), *few_prompts_line(rows, few if len(few) < len(groups) else ()),
        *warning_lines(rows, [name for _, name in named], for_readers=True),
    ]  # fmt: skip
