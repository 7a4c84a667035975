"""What the page of a row shows."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from markupsafe import Markup

from specbench.publish.site.entries import Entry
from specbench.publish.site.index import Cell, Line, Weakness, signed, weaknesses
from specbench.publish.site.pictures import Bars, Columns, Histogram, bars_of, columns_of, histogram_of
from specbench.results.bootstrap import Metric
from specbench.results.breakdown import per_token
from specbench.results.captions import is_baseline, lossless_word, sampling_of, verdict_of
from specbench.results.comparison_input import leaves
from specbench.results.glossary import meaning
from specbench.results.row import RESULT_FIELDS, STATED, Row
from specbench.results.units import NULL, number, unit_of

SECTIONS: dict[str, tuple[str, ...]] = {
    "Models": ("target", "target_revision", "drafter", "drafter_revision", "dtype", "attention", "engine", "chat"),
    "Method": ("method", "num_draft_tokens", "options", "lossless"),
    "Task and data": ("task", "subset", "language", "n", "repeats", "seed", "data_source", "data_location",
                      "data_revision", "shots"),
    "Sampling": ("sampling",),
    "Machine and software": ("device", "versions", "commit"),
    "Result": ("digest", "created", "quality", "signatures", "intervals", "format"),
    "Stated: nothing in the run's folder tells whether it is true": tuple(sorted(STATED)),
}  # fmt: skip


def facts(row: Row, digest: str) -> Iterator[tuple[str, Markup]]:
    """Under each heading the fields, dotted where they have parts, as the file has them."""
    known: dict[str, list[Markup]] = {}
    for name, value in leaves(row).items():
        known.setdefault(name.partition(".")[0], []).append(_fact(name, str(value)))
    known |= {"sampling": [_fact("tokens are drawn", sampling_of(row)), *known["sampling"]]}
    known |= {"digest": [_fact("digest", digest)], "format": [_fact("format", str(row.format))]}
    for heading, fields in SECTIONS.items():
        yield heading, Markup("").join(fact for field in fields for fact in known.get(field, []))


@lru_cache(maxsize=20_000)
def _fact(name: str, value: str) -> Markup:
    """An entry of a list; most are the same in many rows."""
    text = {"null": "–", "{}": "–", "true": "yes", "false": "no"}.get(value, value)
    return Markup("<div><dt>{}</dt><dd>{}</dd></div>\n").format(name, text)


NAMES = {
    "draft": ("draft", "passes of the drafter"),
    "verify": ("verify", "passes of the target"),
    "overhead": ("overhead", "rules, sampling, tokenizers, Python"),
    "rule and sampling": ("rule", "verification and sampling"),
    "tokenizer": ("tokenizer", "text and tokens"),
    "other": ("other", "what is left: Python, bookkeeping"),
}
OF_OVERHEAD = ("rule and sampling", "tokenizer", "other")


@dataclass(frozen=True)
class Part:
    name: str
    meaning: str
    milliseconds: float


@dataclass(frozen=True)
class Breakdown:
    label: str
    parts: tuple[Part, ...]

    @property
    def total(self) -> float:
        return sum(part.milliseconds for part in self.parts)


def breakdown_of(row: Row, label: str) -> Breakdown | None:
    """Of a decoded token after the first, so that the sum is what tok/s says; rows of earlier formats know of their
    overhead no parts. None where the row does not know its passes."""
    spent = per_token(row)
    whole, draft, verify = spent["all"], spent["draft"], spent["verify"]
    if whole is None or draft is None or verify is None:
        return None
    parts = {"draft": draft, "verify": verify}
    known = {name: found for name in OF_OVERHEAD if (found := spent[name]) is not None}
    parts |= known if len(known) == len(OF_OVERHEAD) else {"overhead": max(0.0, whole - draft - verify)}
    return Breakdown(label, tuple(Part(*NAMES[name], milliseconds) for name, milliseconds in parts.items()))


def beside_baseline(row: Row, baseline: Row | None) -> list[Breakdown]:
    """The baseline's first, where there is one, and the row's own."""
    found = [] if baseline is None or baseline is row else [breakdown_of(baseline, "ar")]
    found.append(breakdown_of(row, row.method_name))
    return [each for each in found if each is not None]


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


OF_SUBSET = {"subset", "language", "n", "data_location", "data_revision", "num_draft_tokens"}


def siblings(entries: Iterable[Entry]) -> dict[str, Sequence[Entry]]:
    """By digest the rows of the same command, task and method, the one over all subsets last."""
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        families.setdefault(_family(entry.row), []).append(entry)
    for family in families.values():
        family.sort(key=lambda entry: entry.row.subset == "all")
    return {entry.digest: family for family in families.values() for entry in family}


def _family(row: Row) -> str:
    same = row.model_dump(mode="json", exclude={*RESULT_FIELDS, *OF_SUBSET})
    same["options"].pop("taken", None)  # of routes: which of them the subset's language took
    return json.dumps([same, row.command], sort_keys=True)
