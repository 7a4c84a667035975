"""The page of a row."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from markupsafe import Markup

from specbench.publish.site.charts import BarChart, ColumnChart, Histogram, bars_of, columns_of, histogram_of
from specbench.publish.site.entries import IndexCell, IndexLine, SiteRow, signed
from specbench.results.bootstrap import Metric
from specbench.results.breakdown import per_token
from specbench.results.captions import is_baseline, lossless_word, sampling_of, verdict_of
from specbench.results.comparable import leaves
from specbench.results.row import RESULT_FIELDS, STATED, Row
from specbench.results.units import NULL, meaning, number, unit_of

SECTIONS: dict[str, tuple[str, ...]] = {
    "Models": ("target", "target_revision", "drafter", "drafter_revision", "dtype", "attention", "engine", "chat"),
    "Method": ("method", "num_draft_tokens", "options", "lossless"),
    "Task and data": ("task", "subset", "language", "n", "repeats", "seed", "data_source", "data_location",
                      "data_revision", "shots"),
    "Sampling": ("sampling",),
    "Machine and software": ("device", "versions", "commit"),
    "Result": ("digest", "created", "request", "quality", "signatures", "intervals", "format"),
    "Stated: nothing in the run's folder shows whether it is true": tuple(sorted(STATED)),
}  # fmt: skip


def facts(row: Row, digest: str) -> Iterator[tuple[str, Markup]]:
    """Returns the fields under each heading, dotted where they have parts, as the file has them."""
    known: dict[str, list[Markup]] = {}
    for name, value in leaves(row).items():
        known.setdefault(name.partition(".")[0], []).append(_fact(name, str(value)))
    known |= {"sampling": [_fact("tokens are drawn", sampling_of(row)), *known["sampling"]]}
    known |= {"digest": [_fact("digest", digest)], "format": [_fact("format", str(row.format))]}
    for heading, fields in SECTIONS.items():
        yield heading, Markup("").join(fact for field in fields for fact in known.get(field, []))


@lru_cache(maxsize=20_000)
def _fact(name: str, value: str) -> Markup:
    """Returns an entry of a list; most entries are the same in many rows."""
    text = {"null": "–", "{}": "–", "true": "yes", "false": "no"}.get(value, value)
    return Markup("<div><dt>{}</dt><dd>{}</dd></div>\n").format(name, text)


NAMES = {
    "draft": ("draft", "passes of the drafter"),
    "verify": ("verify", "passes of the target"),
    "overhead": ("overhead", "verification rules, sampling, tokenizers, Python"),
    "rule and sampling": ("rule", "verification and sampling"),
    "tokenizer": ("tokenizer", "text and tokens"),
    "other": ("other", "the rest: Python, bookkeeping"),
}
OF_OVERHEAD = ("rule and sampling", "tokenizer", "other")


@dataclass(frozen=True)
class TimePart:
    """A part of the time per token."""

    name: str
    meaning: str
    milliseconds: float


@dataclass(frozen=True)
class TimeBreakdown:
    """The parts of the time per token of one method."""

    label: str
    parts: tuple[TimePart, ...]

    @property
    def total(self) -> float:
        return sum(part.milliseconds for part in self.parts)


def breakdown_of(row: Row, label: str) -> TimeBreakdown | None:
    """Returns the parts of the time per token after the first, whose sum agrees with tok/s. The overhead is one part
    where the row does not have its parts. None where the row does not have the times of its passes."""
    spent = per_token(row)
    whole, draft, verify = spent["all"], spent["draft"], spent["verify"]
    if whole is None or draft is None or verify is None:
        return None
    parts = {"draft": draft, "verify": verify}
    known = {name: found for name in OF_OVERHEAD if (found := spent[name]) is not None}
    parts |= known if len(known) == len(OF_OVERHEAD) else {"overhead": max(0.0, whole - draft - verify)}
    return TimeBreakdown(label, tuple(TimePart(*NAMES[name], milliseconds) for name, milliseconds in parts.items()))


def time_breakdowns(row: Row, baseline: Row | None) -> list[TimeBreakdown]:
    """Returns the baseline's breakdown, where there is one, and the row's own."""
    found = [] if baseline is None or baseline is row else [breakdown_of(baseline, "ar")]
    found.append(breakdown_of(row, row.method_name))
    return [each for each in found if each is not None]


LOSSLESS = {
    "yes": "Its verification rule keeps the target's distribution (lossless).",
    "no": "Its verification rule does not keep the target's distribution (lossy): the output is not the target's own.",
    "claimed": "Its authors claim that it is lossless; this is not verified here.",
    "not claimed": "Its authors do not claim that it is lossless.",
}
BASELINE = (
    "baseline, with which other methods are compared",
    "None: the target decodes alone, one token per pass.",
)


@dataclass(frozen=True)
class HeadlineFigure:
    """A number at the top of the page."""

    name: str
    cell: IndexCell
    note: str = ""


@dataclass(frozen=True)
class MetricLine:
    """A metric with its interval, unit and meaning."""

    name: str
    value: str
    interval: str
    meaning: Markup


@dataclass(frozen=True)
class RowPage:
    """All that the page of a row shows. `guard`: the worked examples. `peers`: rows that compare with it."""

    entry: SiteRow
    line: IndexLine
    figures: tuple[HeadlineFigure, ...]
    verdict: str
    lossless: str
    guard: str
    bars: BarChart | None
    histogram: Histogram
    columns: ColumnChart | None
    times: tuple[TimeBreakdown, ...]
    metrics: tuple[MetricLine, ...]
    facts: tuple[tuple[str, Markup], ...]
    peers: Sequence[IndexLine]


def row_page(line: IndexLine, subsets: Sequence[SiteRow], peers: Sequence[IndexLine], baseline: Row | None) -> RowPage:
    """Returns a page. `subsets`: the rows of all subsets. `peers`: rows that it compares with, itself among them.
    `baseline`: AR's row of the same run."""
    entry = line.entry
    row, histogram = entry.row, histogram_of(entry.side)
    return RowPage(
        entry, line, tuple(_figures(line)), *_claims(row), guard_of(row),
        bars_of(subsets), histogram, columns_of(histogram),
        tuple(time_breakdowns(row, baseline)), tuple(metric_lines(row)),
        tuple(facts(row, entry.digest)), peers,
    )  # fmt: skip


def _claims(row: Row) -> tuple[str, str]:
    """Returns the verdict with its reason, and what the verification rule promises."""
    return BASELINE if is_baseline(row) else (verdict_of(row), LOSSLESS[lossless_word(row)])


def guard_of(row: Row) -> str:
    """Returns the number of worked examples before each prompt, and whether one of them could be a measured example."""
    if not row.shots.num:
        return "none: no worked example stands before a prompt"
    source = " ".join(filter(None, (row.shots.source, row.shots.location)))
    checked = (
        "whether one of them is measured could not be checked"
        if row.shots.num_checked is None
        else f"none is among the {row.shots.num_checked} measured examples"
    )
    return f"{row.shots.num} before each prompt, from {source}; {checked}"


def _figures(line: IndexLine) -> list[HeadlineFigure]:
    row, cells = line.entry.row, line.cells
    ar = row.metrics.get("tokens_per_second_ar", Metric()).value
    return [
        HeadlineFigure("speed-up", cells["speedup"], "95 % interval" if cells["speedup"].more else "no interval"),
        HeadlineFigure("tokens per second", cells["speed"], "" if ar is None else f"baseline {ar:.1f}"),
        HeadlineFigure("mean acceptance length τ", cells["tau"], "tokens per target pass"),
        HeadlineFigure("acceptance rate α", cells["alpha"], "of judged draft tokens"),
        _score(row),
        HeadlineFigure("rank by speed-up", cells["rank"], "in the rows that compare"),
    ]  # fmt: skip


def _score(row: Row) -> HeadlineFigure:
    """Returns the main score and the baseline's."""
    if row.quality is None:
        return HeadlineFigure("quality", IndexCell(NULL), "not scored, or by several scores")
    unit = unit_of(row.quality)
    own, baseline, change = (
        row.metrics.get(f"{row.quality}{suffix}", Metric()) for suffix in ("", "_ar", "_difference")
    )
    interval = "" if change.low is None or change.high is None else (
        f", difference [{signed(change.low * unit.factor, unit.digits)}, "
        f"{signed(change.high * unit.factor, unit.digits)}]"
    )  # fmt: skip
    return HeadlineFigure(
        f"quality: {unit.label}",
        IndexCell(number(own, unit.digits, unit.factor)),
        f"baseline {number(baseline, unit.digits, unit.factor)}{interval}",
    )


def metric_lines(row: Row) -> list[MetricLine]:
    """Returns the metrics of the row, those without a value last."""
    return [
        MetricLine(
            name,
            _number(metric.value),
            f"[{_number(metric.low)}, {_number(metric.high)}]" if metric.low is not None else "",
            _meaning(name),
        )
        for name, metric in sorted(row.metrics.items(), key=lambda each: each[1].value is None)
    ]


@cache
def _meaning(name: str) -> Markup:
    """Returns unit and meaning as cells, which the pages of all rows share."""
    unit, text = meaning(name) or ("", "a metric of a plug-in: see its scorer")
    return Markup('<td>{}</td><td class="text">{}</td>').format(unit, text)


def _number(value: float | None) -> str:
    if value is None:
        return NULL
    if value == int(value) and abs(value) < 1e9:
        return str(int(value)).replace("-", "−")
    return f"{value:.4g}".replace("-", "−") if abs(value) < 1e4 else f"{value:,.0f}".replace("-", "−")


OF_SUBSET = {"subset", "language", "n", "data_location", "data_revision", "num_draft_tokens"}


def subset_rows(entries: Iterable[SiteRow]) -> dict[str, Sequence[SiteRow]]:
    """Returns by digest the rows of the same command, task and method, the row over all subsets last."""
    groups: dict[str, list[SiteRow]] = {}
    for entry in entries:
        groups.setdefault(_group_key(entry.row), []).append(entry)
    for group in groups.values():
        group.sort(key=lambda entry: entry.row.subset == "all")
    return {entry.digest: group for group in groups.values() for entry in group}


def _group_key(row: Row) -> str:
    same = row.model_dump(mode="json", exclude={*RESULT_FIELDS, *OF_SUBSET})
    same["options"].pop("taken", None)  # the routes that the subset's language took
    return json.dumps([same, row.command], sort_keys=True)
