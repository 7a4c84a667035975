"""What the page of a row shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup

from specbench.results.bootstrap import Metric
from specbench.results.captions import is_baseline, lossless_word, verdict_of
from specbench.results.cells import NULL, number
from specbench.results.glossary import meaning
from specbench.results.row import Row
from specbench.results.units import unit_of
from specbench.site.bars import Bars, Columns, bars_of, columns_of
from specbench.site.breakdown import Breakdown, beside_baseline
from specbench.site.entries import Entry
from specbench.site.facts import facts
from specbench.site.histogram import Histogram, histogram_of
from specbench.site.index import Cell, Line, signed
from specbench.site.warnings import Weakness, weaknesses

LOSSLESS = {
    "yes": "Its rule keeps the target's distribution (lossless).",
    "no": "Its rule gives the target's distribution up (lossy): the output is not the target's own.",
    "claimed": "Its authors claim that it is lossless; that is not verified here.",
    "not claimed": "Its authors do not claim that it is lossless.",
}
BASELINE = (
    "baseline, what other methods are compared with",
    "None: the target decodes alone, a token per pass, so its output is the target's own.",
)


@dataclass(frozen=True)
class Figure:
    """One of the numbers at the top of the page."""

    name: str
    cell: Cell
    note: str = ""


@dataclass(frozen=True)
class Measured:
    """A metric with all that is to be known of it."""

    name: str
    value: str
    interval: str
    told: Markup


@dataclass(frozen=True)
class RowPage:
    entry: Entry
    line: Line
    figures: tuple[Figure, ...]
    verdict: str
    lossless: str
    guard: str
    warnings: tuple[Weakness, ...]
    bars: Bars | None
    histogram: Histogram
    columns: Columns | None
    times: tuple[Breakdown, ...]
    metrics: tuple[Measured, ...]
    facts: tuple[tuple[str, Markup], ...]
    beside: Sequence[Line]


def row_page(line: Line, family: Sequence[Entry], beside: Sequence[Line], baseline: Row | None) -> RowPage:
    """`family`: the rows of all subsets; `beside`: rows that it compares with, itself among them; `baseline`: AR's row
    of the same run."""
    entry = line.entry
    row, histogram = entry.row, histogram_of(entry.side)
    return RowPage(
        entry, line, tuple(_figures(line)), *_claims(row), guard_of(row),
        tuple(weaknesses(row)), bars_of(family), histogram, columns_of(histogram),
        tuple(beside_baseline(row, baseline)), tuple(measured(row)),
        tuple(facts(row, entry.digest)), beside,
    )  # fmt: skip


def _claims(row: Row) -> tuple[str, str]:
    """The verdict with what it rests on, and what its rule promises."""
    return BASELINE if is_baseline(row) else (verdict_of(row), LOSSLESS[lossless_word(row)])


def guard_of(row: Row) -> str:
    """The worked examples before each prompt, and whether one of them could be among those that are measured."""
    if not row.shots.num:
        return "none: no worked example stands before a prompt"
    source = " ".join(filter(None, (row.shots.source, row.shots.location)))
    checked = (
        "that none is measured could not be checked"
        if row.shots.num_checked is None
        else f"none is among the {row.shots.num_checked} measured examples"
    )
    return f"{row.shots.num} before each prompt, from {source}; {checked}"


def _figures(line: Line) -> list[Figure]:
    row, cells = line.entry.row, line.cells
    ar = row.metrics.get("tokens_per_second_ar", Metric()).value
    return [
        Figure("speed-up", cells["speedup"], "95 % interval" if cells["speedup"].more else "no interval"),
        Figure("tokens per second", cells["speed"], "" if ar is None else f"baseline {ar:.1f}"),
        Figure("mean acceptance length τ", cells["tau"], "tokens per target pass"),
        Figure("acceptance rate α", cells["alpha"], "of judged draft tokens"),
        _score(row),
        Figure("rank by speed-up", cells["rank"], "in the rows that compare"),
    ]  # fmt: skip


def _score(row: Row) -> Figure:
    """The main score, beside the baseline's."""
    if row.quality is None:
        return Figure("quality", Cell(NULL), "not scored, or by several scores")
    unit = unit_of(row.quality)
    own, baseline, change = (
        row.metrics.get(f"{row.quality}{suffix}", Metric()) for suffix in ("", "_ar", "_difference")
    )
    interval = "" if change.low is None or change.high is None else (
        f", difference [{signed(change.low * unit.factor, unit.digits)}, "
        f"{signed(change.high * unit.factor, unit.digits)}]"
    )  # fmt: skip
    return Figure(
        f"quality: {unit.label}",
        Cell(number(own, unit.digits, unit.factor)),
        f"baseline {number(baseline, unit.digits, unit.factor)}{interval}",
    )


def measured(row: Row) -> list[Measured]:
    """Every metric of the row that has a value, and then those that are null."""
    return [
        Measured(
            name,
            _number(metric.value),
            f"[{_number(metric.low)}, {_number(metric.high)}]" if metric.low is not None else "",
            _told(name),
        )
        for name, metric in sorted(row.metrics.items(), key=lambda each: each[1].value is None)
    ]


@cache
def _told(name: str) -> Markup:
    """Unit and meaning as cells, which the pages of all rows share."""
    unit, text = meaning(name) or ("", "of a plug-in: its scorer says what it means")
    return Markup('<td>{}</td><td class="text">{}</td>').format(unit, text)


def _number(value: float | None) -> str:
    if value is None:
        return NULL
    if value == int(value) and abs(value) < 1e9:
        return str(int(value)).replace("-", "−")
    return f"{value:.4g}".replace("-", "−") if abs(value) < 1e4 else f"{value:,.0f}".replace("-", "−")
