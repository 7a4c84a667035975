"""The page of a row."""

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from specbench.core.environment import EMBEDDED
from specbench.publish.site.charts import Scale, bars_of, scale
from specbench.publish.site.entries import IndexCell, SiteRow
from specbench.report.captions import decodes_alone, lossless_word, sampling_of, verdict_of
from specbench.report.shown import ShownRecord
from specbench.report.tables import per_token
from specbench.results.conditions import flat_fields
from specbench.results.metric_format import NULL, find_metric, interval, interval_of, metric_of, number
from specbench.results.metrics import accepted_tokens_per_step
from specbench.results.paired import RowWithRecords
from specbench.results.row import RESULT_FIELDS, UNVERIFIABLE_FIELDS, Row
from specbench.specs.run_options import RunOptions

SECTIONS: dict[str, tuple[str, ...]] = {
    "Models": ("target", "target_revision", "drafter", "drafter_revision", "dtype", "attention", "engine", "chat",
               "template_date"),
    "Method": ("method", "num_draft_tokens", "options", "lossless"),
    "Task and data": ("task", "subset", "language", "n", "repeats", "seed", "data_source", "data_location",
                      "data_revision", "shots", "system"),
    "Sampling": ("sampling",),
    "Machine and software": ("device", "versions", "commit", "served"),
    "Result": ("digest", "created", "request", "quality", "signatures", "intervals", "warm_up", "context",
               "common_ids", "format"),
    "Stated: the run's folder cannot confirm these": tuple(sorted(UNVERIFIABLE_FIELDS)),
}  # fmt: skip


def provenance(row: Row, digest: str) -> Iterator[tuple[str, Markup]]:
    """Yields each heading with its fields as in the file, with dotted names for parts."""
    known: dict[str, list[Markup]] = {}
    for name, value in flat_fields(row).items():
        known.setdefault(name.partition(".")[0], []).append(_fact(name, str(value)))
    known |= {"sampling": [_fact("tokens are drawn", sampling_of(row)), *known["sampling"]]}
    known |= {"digest": [_fact("digest", digest)], "format": [_fact("format", str(row.format))]}
    for heading, fields in SECTIONS.items():
        yield heading, Markup("").join(fact for field in fields for fact in known.get(field, []))


@lru_cache(maxsize=20_000)
def _fact(name: str, value: str) -> Markup:
    """Returns an entry of a list. It is cached, since many rows have the same entries."""
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


class TimePart(NamedTuple):
    """A part of the time per token."""

    name: str
    meaning: str
    milliseconds: float


class TimeBreakdown(NamedTuple):
    """The parts of the time per token of one method, and their sum in milliseconds."""

    label: str
    parts: Sequence[TimePart]
    total: float


def breakdown_of(row: Row, label: str) -> TimeBreakdown | None:
    """Returns the parts of the time per token after the first. They sum to 1000 ÷ tok/s. The overhead is a single part
    if the row lacks its parts. None if the row lacks the times of its passes."""
    spent = per_token(row)
    whole, draft, verify = spent["all"], spent["draft"], spent["verify"]
    if whole is None or draft is None or verify is None:
        return None
    parts = {"draft": draft, "verify": verify}
    known = {name: found for name in OF_OVERHEAD if (found := spent[name]) is not None}
    parts |= known if len(known) == len(OF_OVERHEAD) else {"overhead": max(0.0, whole - draft - verify)}
    named = [TimePart(*NAMES[name], milliseconds) for name, milliseconds in parts.items()]
    return TimeBreakdown(label, named, sum(parts.values()))


@dataclass(frozen=True)
class ChartColumn:
    """A column on the axis. `x`: its left edge. `top`: its upper edge."""

    length: int
    count: int
    share: float
    x: float
    top: float


@dataclass(frozen=True)
class Histogram:
    """A histogram of accepted draft tokens. `counts`: element k is the number of target passes that accepted k; empty
    if unknown, with the `reason`. `base`: the place of the axis in the picture."""

    counts: tuple[int, ...]
    reason: str = ""
    base = 160.0

    @property
    def step(self) -> float:
        return 56.0 if len(self.counts) <= 10 else 560 / len(self.counts)

    @property
    def width(self) -> float:
        return round(self.step * 0.78, 1)

    @cached_property
    def y(self) -> Scale:
        return scale([0.0, *(100 * count / sum(self.counts) for count in self.counts)], self.base, 14.0, most_ticks=4)

    @property
    def columns(self) -> list[ChartColumn]:
        shares = [count / sum(self.counts) for count in self.counts]
        return [
            ChartColumn(length, count, share, round(48 + self.step * length, 1), self.y(100 * share))
            for length, (count, share) in enumerate(zip(self.counts, shares, strict=True))
        ]


def histogram_of(side: RowWithRecords) -> Histogram:
    """Returns the counts of a row, or of its records if the row lacks them."""
    counts = side.row.accepted_tokens_per_step
    if counts is None and side.method is not None and side.own:
        counts = accepted_tokens_per_step(side.own, side.method.most_draft_tokens)
    if counts and sum(counts) and not decodes_alone(side.row):
        return Histogram(counts)
    if decodes_alone(side.row):
        return Histogram((), "Nothing is drafted: one model decodes alone, one token per pass.")
    if "decoder" in side.row.options:
        return Histogram((), "Unknown: external code decodes and does not report its steps.")
    if side.own or counts is not None:
        return Histogram((), "Unknown: the answers have no target pass after the first token.")
    return Histogram((), "Unknown: the row lacks it, and the records of its run are not available.")


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


def row_page(
    entry: SiteRow, subsets: Sequence[SiteRow], peers: Sequence[SiteRow], baseline: Row | None, num_answers: int = 0
) -> dict[str, object]:
    """Returns the template values of a row's page. `subsets`: the rows of all subsets. `peers`: rows with which it
    compares, itself included. `baseline`: AR's row of the same run. `num_answers`: how many of its records are shown.
    """
    row = entry.row
    verdict, lossless = BASELINE if row.is_baseline else (verdict_of(row), LOSSLESS[lossless_word(row)])
    measured = [row] if baseline is None or baseline is row else [baseline, row]
    times = [breakdown_of(each, each.method_name) for each in measured]
    fewshot = "none"
    if row.shots.num:
        source = " ".join(filter(None, (row.shots.source, row.shots.location)))
        checked = f"none is among the {row.shots.num_checked} measured examples"
        if row.shots.num_checked is None:
            checked = "it could not be checked whether any of them is measured"
        fewshot = f"{row.shots.num} before each prompt, from {source}; {checked}"
    # Metrics without a value come last.
    metrics = [
        (name, _number(metric.value), interval_of(metric, _number), _meaning(name))
        for name, metric in sorted(row.metrics.items(), key=lambda each: each[1].value is None)
    ]
    return {
        "entry": entry, "figures": _figures(entry), "verdict": verdict, "lossless": lossless, "fewshot": fewshot,
        "bars": bars_of(subsets), "histogram": histogram_of(entry.side), "times": list(filter(None, times)),
        "metrics": metrics, "command": repeat_command(row),
        "facts": list(provenance(row, entry.digest)), "peers": peers,
        "records": [
            ShownRecord.of(record, {"ar", row.method_name}, scorer=(entry.side.scoring or {})[record.subset].scorer)
            for record in entry.side.records[:num_answers]
        ],
    }  # fmt: skip


# Options that `request` lacks.
KEPT_OPTIONS = ("--judge", "--judge-base-url", "--judge-prices", "--judge-template", "--lm-eval-include")
DEFAULT_THREADS = 1  # of the embedded target


def repeat_command(row: Row) -> str:
    """Returns a command that measures the row again, from the request in the row: its task and method, and the options
    that they need. With overrides all tasks and methods of the request are kept, since an override may need them. If
    the row has no request of `specbench run`, it is the recorded command."""
    request = dict(row.request)
    tasks, methods = (str(request.pop(name, "")).split(",") for name in ("task", "method"))
    if not all((*tasks, *methods)) or not request.keys() <= RunOptions.__dataclass_fields__.keys():
        return row.command
    if not request.get("overrides"):
        tasks = [each for each in tasks if Path(each).stem == row.task_name] or tasks
        methods = [each for each in methods if Path(each).stem == row.method_name] or methods
    if len(tasks) == 1 and not any(name.startswith("pass@") for name in row.metrics):
        request.pop("allow_code_execution", None)
    if row.target.startswith(EMBEDDED) and request.get("threads") == DEFAULT_THREADS:
        del request["threads"]
    try:
        words = shlex.split(row.command)
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in request.items()
        }
        options = replace(RunOptions(), **given).words()
    except (ValueError, TypeError):  # a row that was edited by hand
        return row.command
    if words[:2] != ["specbench", "run"]:
        return row.command
    kept = [word for pair in pairwise(words) if pair[0] in KEPT_OPTIONS for word in pair]
    return shlex.join([*words[:2], "--task", ",".join(tasks), "--method", ",".join(methods), *options, *kept])


Figure = tuple[str, IndexCell, str]  # a number at the top of the page: its name, the number, a note


def _figures(entry: SiteRow) -> list[Figure]:
    row, cells = entry.row, entry.cells
    ar = row.value("tokens_per_second_ar")
    score: Figure = ("quality", IndexCell(NULL), "not scored, or by several scores")
    if row.quality is not None:
        unit = metric_of(row.quality)
        own, baseline, change = (row.metric(f"{row.quality}{suffix}") for suffix in ("", "_ar", "_difference"))
        difference = interval(change, unit.digits, unit.factor, "+")
        note = f"baseline {number(baseline, unit.digits, unit.factor)}"
        note += f", difference {difference}" if difference else ""
        score = (f"quality: {unit.label}", IndexCell(number(own, unit.digits, unit.factor)), note)
    return [
        ("speed-up", cells["speedup"], "95 % interval" if cells["speedup"].more else "no interval"),
        ("tokens per second", cells["speed"], "" if ar is None else f"baseline {ar:.1f}"),
        ("mean acceptance length τ", cells["tau"], "tokens per target pass"),
        ("acceptance rate α", cells["alpha"], "of judged draft tokens"),
        score,
        ("rank by speed-up", cells["rank"], "in the rows that compare"),
    ]


@cache
def _meaning(name: str) -> Markup:
    """Returns unit and meaning as cells. They are cached, since all pages share them."""
    known = find_metric(name)
    unit, text = (known.unit, known.explanation) if known else ("", "a metric of a plug-in: see its scorer")
    return Markup('<td>{}</td><td class="text">{}</td>').format(unit, text)


def _number(value: float | None) -> str:
    if value is None:
        return NULL
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


OF_SUBSET = {"subset", "language", "n", "data_location", "data_revision", "num_draft_tokens"}


def subset_rows(entries: Iterable[SiteRow]) -> dict[str, Sequence[SiteRow]]:
    """Returns for each row, by digest, the rows of the same command, task and method, the one over all subsets last."""
    groups: dict[str, list[SiteRow]] = {}
    for entry in entries:
        same = entry.row.model_dump(mode="json", exclude={*RESULT_FIELDS, *OF_SUBSET})
        same["options"].pop("taken", None)  # the routes that the language of a subset took
        groups.setdefault(json.dumps([same, entry.row.command], sort_keys=True), []).append(entry)
    for group in groups.values():
        group.sort(key=lambda entry: entry.row.subset == "all")
    return {entry.digest: group for group in groups.values() for entry in group}
