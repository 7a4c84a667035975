"""Rows → ranked tables, one for each set of equal conditions. Rows that their intervals do not separate share ranks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from specbench.core.errors import ConfigError, nearest
from specbench.core.table import FORMATS, Column, Table, number_columns, text_columns
from specbench.report.captions import (
    dtype_and_device,
    few_prompts_line,
    model_name,
    sampling_of,
    score_heading,
    stated_verdicts,
    verdict_word,
    warning_lines,
    why_unranked,
)
from specbench.report.tables import acceptance_cells, acceptance_heading, speed_cells
from specbench.results.conditions import conditions, flat_fields
from specbench.results.leaderboard import load
from specbench.results.metric_format import find_metric, metric_of, number, speed, without_digest
from specbench.results.paired import KINDS, RowWithRecords, metric_of_row, pair_up
from specbench.results.row import Row
from specbench.results.runs import RecordedRuns, filter_rows, rows_of_subsets
from specbench.statistics.bootstrap import TAILS, Array, bonferroni

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
    excludes "no change". So the ranks of rows that are not separable overlap. Down the table, no rank begins or ends
    above one before it (`_in_order`). The intervals of all pairs of rows are
    widened together (`widening`), or equal rows would often look separable. More than MOST_PAIRED rows are compared by
    their own intervals instead of prompt by prompt.
    """
    sign = 1 if metric_of(metric).lower_is_better else -1
    drafters = [side for side in sides if why_unranked(side.row) is None]
    present = [(value, side) for side in drafters if (value := side.row.value(metric)) is not None]
    valued = [side for _, side in sorted(present, key=lambda each: sign * each[0])]
    without = [side for side in drafters if side.row.value(metric) is None]
    rest = [RankedRow(side, None, None) for side in (*without, *(side for side in sides if why_unranked(side.row)))]
    if len(valued) > MOST_PAIRED:
        return [*_in_order(_interval_ranking(valued, metric)), *rest]
    pairs = [(i, j) for i in range(len(valued)) for j in range(i + 1, len(valued))]
    by = widening(len(pairs), min((each.row.n for each in valued), default=0))
    changes = {(i, j): pair_up(valued[i], valued[j]).change(metric).widened(by) for i, j in pairs}
    ranked = []
    for place, side in enumerate(valued):
        better = sum(changes[other, place].separable for other in range(place))
        worse = sum(changes[place, other].separable for other in range(place + 1, len(valued)))
        own = [change for pair, change in changes.items() if place in pair]
        reasons = frozenset(change.unpaired for change in own if change.unpaired is not None)
        unknown = sum(not change.has_interval for change in own)
        ranked.append(RankedRow(side, better + 1, len(valued) - worse, reasons, unknown))
    return [*_in_order(ranked), *rest]


def _in_order(ranked: Sequence[RankedRow]) -> list[RankedRow]:
    """Returns the rows with ranks that do not fall, such as 1–5 and 1–5 instead of 1–5 above 1–3: a row with a better
    value has no worse a rank. Ranks only become wider."""
    best = list(accumulate((each.best or 0 for each in reversed(ranked)), min))[::-1]
    worst = accumulate((each.worst or 0 for each in ranked), max)
    return [replace(each, best=first, worst=last) for each, first, last in zip(ranked, best, worst, strict=True)]


def widening(num_pairs: int, num_prompts: int) -> float:
    """Returns the factor by which to widen the 95 % intervals of all pairs, so that any of them misses the truth in at
    most 5 % of the tables (Bonferroni, two-sided; quantiles of Student's t). The degrees of freedom are a third of the
    prompts, since the far tails of intervals of few prompts are heavier than those of the mean of normal numbers. With
    8 equal rows and long-tailed lengths, 3 % of the tables at 10 prompts and 4 % at 30 and 100 then have a pair that
    looks separable; without widening 40 to 65 % have one."""
    return bonferroni(num_pairs, 1 - TAILS[1], max(1.0, num_prompts / 3))


def _interval_ranking(valued: Sequence[RowWithRecords], metric: str) -> list[RankedRow]:
    """Ranks rows by their own intervals. The interval of a ratio or difference is the one of
    `paired.unpaired_difference` (MOVER), for ratios on the log scale."""
    total, estimates = len(valued), [metric_of_row(side.row, metric) for side in valued]

    def column(name: str) -> Array:
        """Returns one field of the metrics, on the log scale for ratios; NaN where it does not exist."""
        ends = [np.nan if (end := getattr(each, name)) is None else end for each in estimates]
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.array(ends, dtype=float)
            return np.where(values > 0, np.log(values), np.nan) if KINDS.get(metric) == "ratio" else values

    value, low, high = map(column, ("value", "low", "high"))
    by = widening(total * (total - 1) // 2, min(side.row.n for side in valued))
    down, up = by * (value - low), by * (high - value)
    order = []
    with np.errstate(invalid="ignore"):
        for place, side in enumerate(valued):
            change = value - value[place]
            least, most = change - np.hypot(down, up[place]), change + np.hypot(up, down[place])
            apart, unknown = (least > 0) | (most < 0), np.isnan(least) | np.isnan(most)
            unknown[place] = False
            best, worst = 1 + int(apart[:place].sum()), total - int(apart[place + 1 :].sum())
            order.append(RankedRow(side, best, worst, frozenset({f"more than {MOST_PAIRED} rows"}), int(unknown.sum())))
    return order


def group_by_conditions(sides: Sequence[RowWithRecords], metric: str) -> dict[str, list[RowWithRecords]]:
    """Returns the rows by their conditions, in the order of the rows. `metric`: the metric that ranks them."""
    groups: dict[str, list[RowWithRecords]] = {}
    for side in sides:
        same = {name: value for name, value in conditions(side.row).items() if not name.startswith("signatures.")}
        same |= {f"signatures.{name}": text for name, text in score_signatures(side.row, metric).items()}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(side)
    return groups


def score_signatures(row: Row, metric: str) -> dict[str, str]:
    """Returns the signatures of the scores in a table: of the ranking metric, and of the main score."""
    shown = (metric, f"{row.quality}")
    return {name: text for name, text in row.signatures.items()
            if any(each == name or each in (f"{name}_ar", f"{name}_difference") for each in shown)}  # fmt: skip


SPEEDUP = "speedup"
# The columns of the metrics that every table shows, and the column of the main score.
PLACES = {
    "acceptance_rate": 4, "mean_acceptance_length": 5, "tokens_per_second_ar": 6, "tokens_per_second": 7, SPEEDUP: 8
}  # fmt: skip
QUALITY = 9


def ranking_tables(rows: Mapping[str, RowWithRecords], metric: str = SPEEDUP) -> list[Table]:
    """Returns a table for each set of conditions, in the order of the files, with the best row by `metric` first.
    `rows`: by their name in the table, which is the number of the file and of the row in it."""
    names = {id(side): name for name, side in rows.items()}
    return [_table(group, names, metric) for group in group_by_conditions(list(rows.values()), metric).values()]


def _table(group: Sequence[RowWithRecords], names: Mapping[int, str], metric: str) -> Table:
    order = rank_rows(group, metric)
    rows = [each.row for each in order]
    settings = distinct_names(rows)
    # Footnotes name rows as the table does: by the method with its settings, else by the number of the row, which then
    # is in every format.
    labels = [settings[row.key] for row in rows]
    is_distinct = len(set(labels)) == len(labels)
    if not is_distinct:
        labels = [f"row {names[id(each.side)]}" for each in order]
    caption = [*_caption(order, metric), *warning_lines(rows, labels)]
    extra = None if metric in (*PLACES, rows[0].quality) else metric
    score = score_heading(rows).replace(" ", "\n")
    figures = number_columns("γ", acceptance_heading(rows), "τ", "tok/s\nar", "tok/s", "speed-up\n95 % interval", score)
    columns = (
        *text_columns("rank", folds=False), Column("row", folds=False, is_for_screen=is_distinct),
        *text_columns("method"), *figures, *(number_columns(metric.replace("_", "\n")) if extra else ()),
        *text_columns("verdict"),
    )  # fmt: skip
    cells = [
        (
            each.text, names[id(each.side)], settings[each.row.key], str(each.row.num_draft_tokens),
            *acceptance_cells(each.row), speed(each.row.metric("tokens_per_second_ar")), *speed_cells(each.row),
            *([number(each.row.metric(extra), 4)] if extra else []), verdict_word(each.row),
        )
        for each in order
    ]  # fmt: skip
    separable = len(order) > 1 and (order[0].best, order[0].worst) == (1, 1)
    place = PLACES.get(metric, QUALITY + (extra is not None))
    best = (0, place) if separable else None
    title = " · ".join(filter(None, (without_digest(rows[0].task), rows[0].subset, rows[0].level)))
    return Table(title, columns, cells, caption, best, num_keys=3)


def distinct_names(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the method of each row by its key; if several rows have the same method, with the settings that
    differ."""
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(without_digest(row.method), []).append(row)
    return {
        row.key: " ".join([method.partition("@")[0], *settings])
        for method, same in named.items()
        for row, settings in zip(same, _settings(same), strict=True)
    }


def _settings(rows: Sequence[Row]) -> list[list[str]]:
    names = ("num_draft_tokens", "drafter", "drafter_revision")
    own: list[dict[str, str]] = [
        {name: str(value) for name, value in flat_fields(each).items() if name.startswith("options.") or name in names}
        for each in rows
    ]
    every = dict.fromkeys(name for each in own for name in each if name != "num_draft_tokens")
    differ = [name for name in every if len({each.get(name) for each in own}) > 1]
    return [[f"{name.rpartition('.')[2]}={each[name][:20]}" for name in differ if name in each] for each in own]


def _caption(order: Sequence[RankedRow], metric: str) -> list[str]:
    rows = [each.row for each in order]
    row = rows[0]
    repeats = f", {row.repeats} repeats" if row.repeats > 1 else ""
    num_baselines = len({each.value("tokens_per_second_ar") for each in rows})
    own = f"the rows are of {num_baselines} runs: tok/s ar and speed-up of a row are of its own run"
    own += "; the row ar is of the newest run" * any(row.is_baseline for row in rows)
    libraries = ", ".join(f"{name} {row.versions.get(name)}" for name in ("torch", "transformers"))
    # How the rows are ranked, and what a rank such as 2–3 says.
    ranked = [each for each in order if why_unranked(each.row) is None]
    known = find_metric(metric)
    ranking = [f"ranked by {metric}" + (f" ({known.unit})" if known else "")]
    num_valued = sum(each.best is not None for each in ranked)
    if len(ranked) > 1 and sum(each.unknown for each in ranked) == num_valued * (num_valued - 1):
        ranking[0] += "; it has no intervals here, so no row can be separated from another"
    elif len(ranked) > 1:
        if any(each.best != each.worst for each in ranked):
            what = "ratio contains 1" if KINDS.get(metric) == "ratio" else "difference contains 0"
            absent = ", or there is none" * any(each.unknown for each in ranked)
            ranking.append(
                f"a rank such as 2–3: not separable from its neighbours (the interval of the {what}{absent})"
            )
        ranking.append("intervals are corrected for all pairs of rows (Bonferroni, 5 % for the table)")
        if reasons := sorted({reason for each in ranked for reason in each.unpaired}):
            ranking.append(f"not all rows are paired ({', '.join(reasons)}): unpaired intervals are wider")
    return [
        f"target {model_name(row.target, row.target_revision)}, n = {row.n}{repeats}, seed {row.seed}; "
        f"{sampling_of(row)}; {dtype_and_device(row)}; {libraries}",
        f"data: {row.data_source}",
        *([own] if num_baselines > 1 else []),
        *(f"{name}: {text}" for name, text in score_signatures(row, metric).items()),
        *ranking,
        *unranked_line(rows),
        *stated_verdicts(rows),
        *few_prompts_line(rows),
    ]


def unranked_line(rows: Sequence[Row]) -> list[str]:
    reasons = {
        f"{without_digest(row.method).partition('@')[0]}: {reason}" for row in rows if (reason := why_unranked(row))
    }
    return [f"not ranked: {'; '.join(sorted(reasons))}"] if reasons else []


def show(
    files: Sequence[Path], metric: str, filters: Sequence[str], subsets: Sequence[str], format_: str = "text"
) -> list[Table | str]:
    """Returns the ranked tables of the selected rows, then lines: what all captions share, the numbers of several
    files, and why existing records could not be read. Raises ConfigError for unknown files, keys, values, subsets,
    metrics and formats, and if there are no rows."""
    if format_ not in FORMATS:
        raise ConfigError(f"--format {format_}: {nearest(format_, FORMATS)}")
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
    runs, keys = RecordedRuns(), {(row.key, row.created) for row in chosen}
    shown = {
        name: runs.with_records(row, file) for row, file, name in places.values() if (row.key, row.created) in keys
    }
    comment = "% " if format_ == "latex" else ""
    made = ranking_tables(shown, metric)
    has_numbers = len(files) > 1 and (
        format_ == "text" or not all(column.is_for_screen for each in made for column in each.columns[1:2])
    )
    legend = [f"{number + 1}: {file}" for number, file in enumerate(files)] if has_numbers else []
    shared: list[str] = []
    if len(made) > 1 and format_ != "latex":  # LaTeX tables are used separately
        shared = [line for line in made[0].caption if all(line in each.caption for each in made[1:])]
    made = [replace(each, caption=[line for line in each.caption if line not in shared]) for each in made]
    below = [*([f"all tables: {'; '.join(shared)}"] if shared else []), *legend, *runs.problem_lines()]
    return [*map(FORMATS[format_], made), *(f"{comment}{line}" for line in below)]
