"""Rows of board files as ranked tables, one for each set of conditions under which rows compare."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.errors import ConfigError, nearest
from specbench.leaderboards.changes import KINDS
from specbench.leaderboards.choosing import leaves
from specbench.leaderboards.comparable import conditions
from specbench.leaderboards.ranks import Ranked, ranked
from specbench.leaderboards.side import Side
from specbench.results.bootstrap import SMALL_SAMPLE
from specbench.results.captions import rests_on_few, sampling_of
from specbench.results.cells import number, short, speed
from specbench.results.doubts import doubt_lines, speedup_cell
from specbench.results.drafters import model_name, prescribed
from specbench.results.glossary import MEANINGS
from specbench.results.notes import heading
from specbench.results.row import Row
from specbench.results.units import unit_of

SPEEDUP = "speedup"
SHOWN = (SPEEDUP, "acceptance_rate", "mean_acceptance_length", "tokens_per_second")  # have a column of their own


@dataclass(frozen=True)
class Numbered:
    """A row with its records, and its name in the table: FILE's number and the row's number in it."""

    name: str
    side: Side


def check_metric(rows: Sequence[Row], metric: str) -> None:
    """Raise ConfigError for a metric that no row has."""
    known = dict.fromkeys(name for row in rows for name in row.metrics)
    if metric not in known:
        raise ConfigError(f"--sort {metric}: no row has this metric: {nearest(metric, known)}")


def tables(rows: Sequence[Numbered], metric: str = SPEEDUP) -> list[Table]:
    """A table for each set of conditions, in the order of the files, the best row of `metric` first."""
    groups: dict[str, list[Numbered]] = {}
    for each in rows:
        row = each.side.row
        same = {name: value for name, value in conditions(row).items() if not name.startswith("signatures.")}
        same |= {f"signatures.{name}": text for name, text in computed(row, metric).items()}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(each)
    return [_table(group, metric) for group in groups.values()]


def computed(row: Row, metric: str) -> dict[str, str]:
    """The signatures of a table's scores: of what ranks the rows, and of their main score."""
    shown = (metric, f"{row.quality}")
    return {name: text for name, text in row.signatures.items()
            if any(each == name or each in (f"{name}_ar", f"{name}_difference") for each in shown)}  # fmt: skip


def _table(group: Sequence[Numbered], metric: str) -> Table:
    names = {id(each.side): each.name for each in group}
    order = ranked([each.side for each in group], metric)
    rows = [each.row for each in order]
    lines = [*_caption(order, metric), *doubt_lines(rows, [f"row {names[id(each.side)]}" for each in order])]
    table = Table(
        title=Text(f"{short(rows[0].task)} · {rows[0].subset}"), caption=Text("\n".join(lines)),
        caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    table.add_column("rank", no_wrap=True)
    table.add_column("row", no_wrap=True)
    table.add_column("method", overflow="fold")
    extra = [] if metric in (*SHOWN, rows[0].quality) else [metric.replace("_", " ")]
    headers = ("γ", "α", "τ", "tok/s", "speed-up\n95 % interval", heading(rows).replace(" ", "\n"), *extra)
    for header in headers:
        table.add_column(header, justify="right", overflow="fold", no_wrap=header not in extra)
    table.add_column("verdict", overflow="fold")
    settings = told_apart(rows)
    for each in order:
        cells = (each.text, names[id(each.side)], settings[each.row.key], *_cells(each.row, metric if extra else None))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _cells(row: Row, extra: str | None) -> list[str]:
    metrics, unit = row.metrics, unit_of(row.quality)
    return [
        str(row.num_draft_tokens),
        number(metrics.get("acceptance_rate"), 3),
        number(metrics.get("mean_acceptance_length"), 2),
        speed(metrics.get("tokens_per_second")),
        speedup_cell(row),
        number(metrics.get(row.quality or ""), unit.digits, unit.factor),
        *([number(metrics.get(extra), 4)] if extra else []),
        row.verdict,
    ]


def told_apart(rows: Sequence[Row]) -> dict[str, str]:
    """The method of each row by its key; of several rows of a method with what they differ in."""
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(short(row.method), []).append(row)
    return {
        row.key: " ".join([method.partition("@")[0], *_settings(row, same)])
        for method, same in named.items()
        for row in same
    }


def _settings(row: Row, same: Sequence[Row]) -> list[str]:
    if len(same) == 1:
        return []
    names = ("num_draft_tokens", "drafter", "drafter_revision")
    own: list[Mapping[str, object]] = [
        {name: value for name, value in leaves(each).items() if name.startswith("options.") or name in names}
        for each in same
    ]
    mine = own[list(same).index(row)]
    differ = [name for name in mine if any(each.get(name) != mine[name] for each in own)]
    shown = {name.rpartition(".")[2]: str(mine[name])[:20] for name in differ if name != "num_draft_tokens"}
    return [f"{name}={value}" for name, value in shown.items()]


def _caption(order: Sequence[Ranked], metric: str) -> list[str]:
    rows = [each.row for each in order]
    row = rows[0]
    repeats = f", {row.repeats} repeats" if row.repeats > 1 else ""
    few = [each.row for each in order if rests_on_few(each.row)]
    libraries = ", ".join(f"{name} {row.versions.get(name)}" for name in ("torch", "transformers"))
    return [
        f"target {model_name(row.target, row.target_revision)}, n = {row.n}{repeats}, seed {row.seed}; "
        f"{sampling_of(row)}; {row.dtype} on {row.device}; {libraries}",
        f"data: {row.data_source}",
        *(f"{name}: {text}" for name, text in computed(row, metric).items()),
        _ranks_told([each for each in order if prescribed(each.row) is None], metric),
        *unranked(rows),
        *([f"intervals rest on few prompts: less than {SMALL_SAMPLE}"] if few else []),
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
