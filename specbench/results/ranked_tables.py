"""Rows of board files as ranked tables, one for each set of conditions under which rows compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.core.errors import ConfigError, nearest
from specbench.core.table import FORMATS, Column, Table, numbers, words
from specbench.results.captions import (
    FEW,
    computed_on,
    heading,
    model_name,
    prescribed,
    rests_on_few,
    sampling_of,
    verdict_word,
)
from specbench.results.comparison_input import filtered, leaves, of_subsets
from specbench.results.glossary import MEANINGS
from specbench.results.leaderboard import load
from specbench.results.paired import KINDS, RowWithRecords
from specbench.results.ranks import Ranked, computed, grouped, ranked
from specbench.results.row import Row
from specbench.results.runs import Runs
from specbench.results.tables import acceptance_cells, speed_cells, warning_lines
from specbench.results.units import number, short

SPEEDUP = "speedup"
# The columns of the metrics that each table has, and that of the main score.
PLACES = {"acceptance_rate": 4, "mean_acceptance_length": 5, "tokens_per_second": 6, SPEEDUP: 7}
QUALITY = 8


@dataclass(frozen=True)
class Numbered:
    """A row with its records, and its name in the table: FILE's number and the row's number in it."""

    name: str
    side: RowWithRecords


def check_metric(rows: Sequence[Row], metric: str) -> None:
    """Raise ConfigError for a metric that no row has."""
    known = dict.fromkeys(name for row in rows for name in row.metrics)
    if metric not in known:
        raise ConfigError(f"--sort {metric}: no row has this metric: {nearest(metric, known)}")


def tables(rows: Sequence[Numbered], metric: str = SPEEDUP) -> list[Table]:
    """A table for each set of conditions, in the order of the files, the best row of `metric` first."""
    names = {id(each.side): each.name for each in rows}
    return [_table(group, names, metric) for group in grouped([each.side for each in rows], metric).values()]


def _table(group: Sequence[RowWithRecords], names: Mapping[int, str], metric: str) -> Table:
    order = ranked(group, metric)
    rows = [each.row for each in order]
    caption = [*_caption(order, metric), *warning_lines(rows, [f"row {names[id(each.side)]}" for each in order])]
    extra = None if metric in (*PLACES, rows[0].quality) else metric
    figures = numbers("γ", "α", "τ", "tok/s", "speed-up\n95 % interval", heading(rows).replace(" ", "\n"))
    columns = (
        *words("rank", folds=False), Column("row", folds=False, is_for_screen=True), *words("method"), *figures,
        *(numbers(metric.replace("_", "\n"), folds=True) if extra else ()), *words("verdict"),
    )  # fmt: skip
    settings = told_apart(rows)
    cells = [(each.text, names[id(each.side)], settings[each.row.key], *_cells(each.row, extra)) for each in order]
    separable = len(order) > 1 and (order[0].best, order[0].worst) == (1, 1)
    place = PLACES.get(metric, QUALITY + (extra is not None))
    best = (0, place) if separable else None
    return Table(f"{short(rows[0].task)} · {rows[0].subset}", columns, cells, caption, best)


def _cells(row: Row, extra: str | None) -> list[str]:
    return [
        str(row.num_draft_tokens),
        *acceptance_cells(row),
        *speed_cells(row),
        *([number(row.metrics.get(extra), 4)] if extra else []),
        verdict_word(row),
    ]


def told_apart(rows: Sequence[Row]) -> dict[str, str]:
    """The method of each row by its key; of several rows of a method with what they differ in."""
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(short(row.method), []).append(row)
    return {
        row.key: " ".join([method.partition("@")[0], *told])
        for method, same in named.items()
        for row, told in zip(same, _settings(same), strict=True)
    }


def _settings(rows: Sequence[Row]) -> list[list[str]]:
    """Of each row of a method what it does not share with the others."""
    names = ("num_draft_tokens", "drafter", "drafter_revision")
    own: list[dict[str, str]] = [
        {name: str(value) for name, value in leaves(each).items() if name.startswith("options.") or name in names}
        for each in rows
    ]
    every = dict.fromkeys(name for each in own for name in each if name != "num_draft_tokens")
    differ = [name for name in every if len({each.get(name) for each in own}) > 1]
    return [[f"{name.rpartition('.')[2]}={each[name][:20]}" for name in differ if name in each] for each in own]


def _caption(order: Sequence[Ranked], metric: str) -> list[str]:
    rows = [each.row for each in order]
    row = rows[0]
    repeats = f", {row.repeats} repeats" if row.repeats > 1 else ""
    few = [each.row for each in order if rests_on_few(each.row)]
    libraries = ", ".join(f"{name} {row.versions.get(name)}" for name in ("torch", "transformers"))
    return [
        f"target {model_name(row.target, row.target_revision)}, n = {row.n}{repeats}, seed {row.seed}; "
        f"{sampling_of(row)}; {computed_on(row)}; {libraries}",
        f"data: {row.data_source}",
        *(f"{name}: {text}" for name, text in computed(row, metric).items()),
        _ranks_told([each for each in order if prescribed(each.row) is None], metric),
        *unranked(rows),
        *([FEW] if few else []),
    ]


def unranked(rows: Sequence[Row]) -> list[str]:
    """A line on each kind of row that no rank is given to."""
    reasons = {f"{short(row.method).partition('@')[0]}: {reason}" for row in rows if (reason := prescribed(row))}
    return [f"not ranked: {'; '.join(sorted(reasons))}"] if reasons else []


def _ranks_told(order: Sequence[Ranked], metric: str) -> str:
    what = "ratio holds 1" if KINDS.get(metric) == "ratio" else "difference holds 0"
    told = f"ranked by {metric}" + (f" ({MEANINGS[metric][0]})" if metric in MEANINGS else "")
    if len(order) < 2:
        return told
    num_valued = sum(each.best is not None for each in order)
    if sum(each.unknown for each in order) == num_valued * (num_valued - 1):
        return f"{told}; it has no intervals here, so nothing is separable"
    if any(each.best != each.worst for each in order):
        told += f"; a rank like 2–3 is not separable from its neighbours: the interval of their {what}"
        told += ", or there is none" if any(each.unknown for each in order) else ""
    told += "; the intervals of all pairs of rows are widened together (Bonferroni, 5 % for the table)"
    if reasons := sorted({reason for each in order for reason in each.unpaired}):
        told += f"; not all are paired ({', '.join(reasons)}): such rows are separable less often"
    return told


def show(
    files: Sequence[Path], metric: str, filters: Sequence[str], subsets: Sequence[str], format_: str = "text"
) -> list[Table | str]:
    """Ranked tables of the rows that are asked for; of several files a line for each with its number; why records that
    are there could not be read.

    Raises ConfigError for files, keys, values, subsets, metrics and formats that there are not, and where there are no
    rows.
    """
    if format_ not in FORMATS:
        raise ConfigError(f"--format {format_}: {nearest(format_, FORMATS)}")
    places: dict[tuple[str, str], tuple[Row, Path, str]] = {}  # of each row, once: its file and its name
    for position, file in enumerate(files, start=1):
        for place, row in enumerate(load(file)):
            name = f"{position}:{place}" if len(files) > 1 else str(place)
            places.setdefault((row.key, row.created), (row, file, name))
    rows = [row for row, _, _ in places.values()]
    if not rows:
        raise ConfigError(
            f"{', '.join(map(str, files))}: no rows: add some with `specbench leaderboard add RUN --to FILE`"
        )
    chosen = of_subsets(filtered(rows, filters), subsets)
    check_metric(chosen, metric)
    runs, keys = Runs(), {(row.key, row.created) for row in chosen}
    shown = [Numbered(name, runs.with_records(row, file))
             for key, (row, file, name) in places.items() if key in keys]  # fmt: skip
    legend = [f"{number + 1}: {file}" for number, file in enumerate(files)] if len(files) > 1 else []
    comment = "% " if format_ == "latex" else ""
    return [*map(FORMATS[format_], tables(shown, metric)), *(f"{comment}{line}" for line in [*legend, *runs.unread()])]
