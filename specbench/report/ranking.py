"""Rows → ranked tables, one for each set of equal conditions. Rows that their intervals do not separate share ranks."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from specbench.core.errors import ConfigError, nearest
from specbench.core.table import TEXT, Table, TableFormat
from specbench.report.captions import (
    dtype_and_device,
    few_prompts_line,
    model_name,
    sampling_of,
    stated_verdicts,
    warning_lines,
    why_unranked,
)
from specbench.report.columns import (
    LENGTH,
    NUM_DRAFT_TOKENS,
    SPEED,
    SPEED_OF_AR,
    SPEEDUP,
    VERDICT,
    RowColumn,
    acceptance_column,
    cells_of,
    metric_column,
    score_column,
)
from specbench.results.conditions import conditions, flat_fields
from specbench.results.leaderboard import load
from specbench.results.level import Levels, level_of
from specbench.results.metric_format import NULL, find_metric, metric_of, without_digest
from specbench.results.paired import KINDS, RowWithRecords, pair_up
from specbench.results.row import Row
from specbench.results.runs import RecordedRuns, filter_rows, rows_of_subsets
from specbench.statistics.bootstrap import TAILS, bonferroni

MOST_PAIRED = 100  # larger tables are not compared prompt by prompt


@dataclass(frozen=True)
class RankedRow:
    """A row with its best and worst possible rank; None without a value. `unpaired`: reasons why some comparisons are
    unpaired. `unknown`: the number of comparisons without an interval."""

    side: RowWithRecords
    best: int | None
    worst: int | None
    unpaired: frozenset[str] = frozenset()
    unknown: int = 0

    @property
    def row(self) -> Row:
        return self.side.row

    @property
    def text(self) -> str:
        """ "2", or "2–4" if it is not separable from other rows."""
        if self.best is None or self.worst is None:
            return ""
        return str(self.best) if self.best == self.worst else f"{self.best}–{self.worst}"


def rank_rows(sides: Sequence[RowWithRecords], metric: str) -> list[RankedRow]:
    """Returns the rows from the best to the worst, then rows without a value, then rows with a prescribed acceptance
    rate, which are not ranked.

    A row loses a rank to every better row that is separable from it: the interval of their ratio (or difference)
    excludes "no change". So the ranks of rows that are not separable overlap. The intervals of all pairs of rows are
    widened together (`widening`), or equal rows would often look separable. More than MOST_PAIRED rows are compared by
    their own intervals instead of prompt by prompt.
    """
    # 1. The order: by value, then what has no value, then what is not ranked.
    sign = 1 if metric_of(metric).lower_is_better else -1
    drafters = [side for side in sides if why_unranked(side.row) is None]
    present = [side for side in drafters if side.row.has(metric)]
    valued = sorted(present, key=lambda side: sign * (side.row.value(metric) or 0.0))
    without = [side for side in drafters if not side.row.has(metric)]
    rest = [RankedRow(side, None, None) for side in (*without, *(side for side in sides if why_unranked(side.row)))]
    if not valued:
        return rest
    # 2. Which rows are separable: each row against those below it.
    total = len(valued)
    many = len(valued) > MOST_PAIRED
    by = widening(total * (total - 1) // 2, min(each.row.n for each in valued))
    compared = [RowWithRecords(side.row) for side in valued] if many else valued
    below, unknown = np.zeros((total, total), bool), np.zeros((total, total), bool)
    reasons: list[set[str]] = [set() for _ in valued]
    for i, j in combinations(range(total), 2):
        change = pair_up(compared[i], compared[j]).change(metric).widened(by)
        below[i, j] = change.separable
        unknown[i, j] = unknown[j, i] = not change.has_interval
        if change.unpaired is not None:
            reason = f"more than {MOST_PAIRED} rows" if many else change.unpaired
            reasons[i].add(reason)
            reasons[j].add(reason)
    # 3. The ranks. Down the table none begins or ends above one before it: 1–5 and 1–5 instead of 1–5 above 1–3, since
    #    a row with a better value has no worse a rank. This only makes ranks wider.
    best = np.minimum.accumulate((1 + below.sum(axis=0))[::-1])[::-1]
    worst = np.maximum.accumulate(total - below.sum(axis=1))
    ranks = zip(valued, best.tolist(), worst.tolist(), reasons, unknown.sum(axis=1).tolist(), strict=True)
    return [*(RankedRow(side, first, last, frozenset(why), num) for side, first, last, why, num in ranks), *rest]


def widening(num_pairs: int, num_prompts: int) -> float:
    """Returns the factor by which to widen the 95 % intervals of all pairs, so that any of them misses the truth in at
    most 5 % of the tables (Bonferroni, two-sided; quantiles of Student's t). The degrees of freedom are a third of the
    prompts, since the far tails of intervals of few prompts are heavier than those of the mean of normal numbers. With
    8 equal rows and long-tailed lengths, 3 % of the tables at 10 prompts and 4 % at 30 and 100 then have a pair that
    looks separable; without widening 40 to 65 % have one."""
    return bonferroni(num_pairs, 1 - TAILS[1], max(1.0, num_prompts / 3))


def group_by_conditions(
    sides: Sequence[RowWithRecords], metric: str, free: Collection[str] = ()
) -> dict[str, list[RowWithRecords]]:
    """Returns the rows by their conditions, in the order of the rows. `metric`: the metric that ranks them. `free`:
    conditions in which the rows of a group may differ, such as "n" or "served.load"."""
    groups: dict[str, list[RowWithRecords]] = {}
    for side in sides:
        same = {name: value for name, value in conditions(side.row).items() if not name.startswith("signatures.")}
        same |= {f"signatures.{name}": text for name, text in score_signatures(side.row, metric).items()}
        same = {name: value for name, value in same.items() if not {name, name.partition(".")[0]} & {*free}}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(side)
    return groups


def score_signatures(row: Row, metric: str) -> dict[str, str]:
    """Returns the signatures of the scores in a table: of the ranking metric, and of the main score."""
    shown = (metric, f"{row.quality}")
    return {name: text for name, text in row.signatures.items()
            if any(each == name or each in (f"{name}_ar", f"{name}_difference") for each in shown)}  # fmt: skip


DEFAULT_METRIC = "speedup"


def ranking_tables(
    rows: Mapping[str, RowWithRecords], metric: str = DEFAULT_METRIC, levels: Levels | None = None,
    for_readers: bool = False,
) -> list[Table]:  # fmt: skip
    """Returns a table for each set of conditions, in the order of the files, with the best row by `metric` first.
    `rows`: by their name in the table, which is the number of the file and of the row in it. `levels`: of rows that
    bundles have; None leaves their column out. `for_readers`: warnings do not say what to do."""
    numbers = {id(side.row): number for number, side in rows.items()}
    groups = group_by_conditions(list(rows.values()), metric).values()
    return [_table(group, numbers, metric, levels, for_readers) for group in groups]


def _table(
    group: Sequence[RowWithRecords], numbers: Mapping[int, str], metric: str, levels: Levels | None, for_readers: bool
) -> Table:
    order = rank_rows(group, metric)
    rows = [each.row for each in order]
    methods = distinct_names(rows)
    # Footnotes name rows as the table does: by the method with its settings, else by the number of the row, which then
    # is in every format.
    labels = [methods[row.key] for row in rows]
    is_distinct = len(set(labels)) == len(labels)
    if not is_distinct:
        labels = [f"row {numbers[id(row)]}" for row in rows]
    ranks = {id(each.row): each.text for each in order}
    columns = [
        RowColumn("rank", folds=False, cell=lambda row: ranks[id(row)]),
        RowColumn("row", folds=False, is_for_screen=is_distinct, cell=lambda row: numbers[id(row)]),
        RowColumn("method", cell=lambda row: methods[row.key]), NUM_DRAFT_TOKENS, acceptance_column(rows), LENGTH,
        SPEED_OF_AR, SPEED, SPEEDUP, score_column(rows), VERDICT,
    ]  # fmt: skip
    if levels is not None:
        columns.append(RowColumn("level", cell=lambda row: str(level_of(row, levels))))
    if all(column.metric != metric for column in columns):
        columns.insert(-1, metric_column(metric, metric.replace("_", "\n"), 4))
    separable = len(order) > 1 and (order[0].best, order[0].worst) == (1, 1)
    bold = [(0, [column.metric for column in columns].index(metric))] if separable else []
    caption = [*_caption(order, metric), *warning_lines(rows, labels, for_readers)]
    title = " · ".join(filter(None, (without_digest(rows[0].task), rows[0].subset, rows[0].level)))
    return Table(title, columns, cells_of(rows, columns), caption, bold, num_keys=3)


def distinct_names(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the method of each row by its key; if several rows have the same method, with the settings that
    differ."""
    names = ("drafter", "drafter_revision")
    settings = [
        {name: value for name, value in flat_fields(row).items() if name.startswith("options.") or name in names}
        for row in rows
    ]
    differ = distinguishing([without_digest(row.method) for row in rows], settings)
    return {
        row.key: " ".join([row.shown_method, *(f"{name.rpartition('.')[2]}={text:.20}" for name, text in own.items())])
        for row, own in zip(rows, differ, strict=True)
    }


def distinguishing(names: Sequence[str], values: Sequence[Mapping[str, object]]) -> list[dict[str, str]]:
    """Returns for each row a few of its values, as text by name, that distinguish it from the other rows of the same
    name. A value that the row lacks is left out."""
    chosen: list[dict[str, str]] = [{} for _ in names]
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(name, []).append(place)
    for same in groups.values():
        for key in dict.fromkeys(key for place in same for key in values[place]):
            before = {repr(chosen[place]) for place in same}
            with_key = [
                chosen[place] | ({key: _text(values[place][key])} if key in values[place] else {}) for place in same
            ]
            if len(set(map(repr, with_key))) > len(before):
                for place, own in zip(same, with_key, strict=True):
                    chosen[place] = own
    return chosen


def _text(value: object) -> str:
    return NULL if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _caption(order: Sequence[RankedRow], metric: str) -> list[str]:
    rows = [each.row for each in order]
    row = rows[0]
    repeats = f", {row.repeats} repeats" if row.repeats > 1 else ""
    libraries = ", ".join(f"{name} {row.versions.get(name)}" for name in ("torch", "transformers"))
    lines = [
        f"target {model_name(row.target, row.target_revision)}, n = {row.n}{repeats}, seed {row.seed}; "
        f"{sampling_of(row)}; {dtype_and_device(row)}; {libraries}",
        f"data: {row.data_source}{'' if row.coverage is None else f', {row.told_examples}'}",
        *(f"{name}: {text}" for name, text in score_signatures(row, metric).items()),
    ]
    if (num_runs := len({each.value("tokens_per_second_ar") for each in rows})) > 1:
        lines.append(f"rows of {num_runs} runs: tok/s ar and speed-up of a row are of its own run")
    # How the rows are ranked, and what a rank such as 2–3 says.
    known = find_metric(metric)
    lines.append(f"ranked by {metric}" + (f" ({known.unit})" if known else ""))
    ranked = [each for each in order if why_unranked(each.row) is None]
    if any(each.best != each.worst for each in ranked):
        what = "ratio contains 1" if KINDS.get(metric) == "ratio" else "difference contains 0"
        absent = ", or there is none" * any(each.unknown for each in ranked)
        lines.append(f"a rank such as 2–3: not separable from its neighbours (the interval of the {what}{absent})")
    if len(ranked) > 1:
        lines.append("intervals are corrected for all pairs of rows (Bonferroni, 5 % for the table)")
    if reasons := sorted({reason for each in ranked for reason in each.unpaired}):
        lines.append(f"not all rows are paired ({', '.join(reasons)}): unpaired intervals are wider")
    return [*lines, *unranked_line(rows), *stated_verdicts(rows), *few_prompts_line(rows)]


def unranked_line(rows: Sequence[Row]) -> list[str]:
    reasons = {
        f"{without_digest(row.method).partition('@')[0]}: {reason}" for row in rows if (reason := why_unranked(row))
    }
    return [f"not ranked: {'; '.join(sorted(reasons))}"] if reasons else []


def show(
    files: Sequence[Path],
    metric: str,
    filters: Sequence[str],
    subsets: Sequence[str],
    format_: TableFormat = TEXT,
    levels: Levels | None = None,
) -> list[Table | str]:
    """Returns the ranked tables of the selected rows, then lines: what all captions share, the numbers of several
    files, and why existing records could not be read. `levels`: of rows that bundles have. Raises
    ConfigError for unknown files, keys, values, subsets, and metrics, and if there are no rows."""
    # One entry per row; among equal baselines of several runs, the newest.
    places: dict[tuple[str, str], tuple[Row, Path, str]] = {}
    for position, file in enumerate(files, start=1):
        for place, row in enumerate(load(file)):
            name = f"{position}:{place}" if len(files) > 1 else str(place)
            key = row.key, "" if row.is_baseline else row.created
            if key not in places or row.created > places[key][0].created:
                places[key] = row, file, name
    rows = [row for row, _, _ in places.values()]
    if not rows:
        raise ConfigError(
            f"{', '.join(map(str, files))}: no rows: add some with `specbench leaderboard add RUN --leaderboard FILE`"
        )
    chosen = rows_of_subsets(filter_rows(rows, filters), subsets)
    known = dict.fromkeys(name for row in chosen for name in row.metrics)
    if metric not in known:
        raise ConfigError(f"--sort {metric}: no row has this metric: {nearest(metric, known)}")
    runs = RecordedRuns()
    keys = {(row.key, row.created) for row in chosen}
    shown = {
        name: runs.with_records(row, file) for row, file, name in places.values() if (row.key, row.created) in keys
    }
    comment = "% " if format_.name == "latex" else ""
    tables = ranking_tables(shown, metric, levels, for_readers=format_.name == "latex")
    shared: list[str] = []
    if len(tables) > 1 and format_.name != "latex":  # LaTeX tables are used separately
        shared = [line for line in tables[0].caption if all(line in each.caption for each in tables[1:])]
    tables = [replace(each, caption=[line for line in each.caption if line not in shared]) for each in tables]
    legend = [f"{number}: {file}" for number, file in enumerate(files, start=1)] if len(files) > 1 else []
    below = [*([f"all tables: {'; '.join(shared)}"] if shared else []), *legend, *runs.problem_lines()]
    return [*map(format_, tables), *(f"{comment}{line}" for line in below)]
