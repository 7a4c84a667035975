"""The page of a row."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from specbench.publish.site.entries import SiteRow
from specbench.report.breakdown import per_token
from specbench.report.captions import decodes_alone, draft_length, lossless_word, model_name, sampling_of, verdict_of
from specbench.results.conditions import flat_fields
from specbench.results.metric_format import NULL, find_metric, interval_of, speed
from specbench.results.metrics import accepted_tokens_per_step
from specbench.results.paired import RowWithRecords
from specbench.results.row import RESULT_FIELDS, UNVERIFIABLE_FIELDS, Row

SECTIONS: dict[str, tuple[str, ...]] = {
    "Models": ("target", "target_revision", "drafter", "drafter_revision", "dtype", "attention", "drafter_passes",
               "drafter_weights", "products", "engine", "pass_width", "chat", "template_date",
               "end_tokens"),
    "Method": ("method", "num_draft_tokens", "options", "memory", "lossless"),
    "Task and data": ("task", "subset", "language", "n", "coverage", "repeats", "seed", "data_source", "data_location",
                      "data_revision", "shots", "system"),
    "Sampling": ("sampling",),
    "Machine and software": ("device", "versions", "commit", "served"),
    "Result": ("digest", "created", "request", "quality", "signatures", "intervals", "warm_up", "context",
               "differences", "batch_width", "common_ids", "format"),
    "Stated: the run's folder cannot confirm these": tuple(sorted(UNVERIFIABLE_FIELDS)),
}  # fmt: skip


def provenance(row: Row, digest: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields each heading with its fields as in the file and their values, with dotted names for parts."""
    known: dict[str, list[tuple[str, str]]] = {}
    for name, value in flat_fields(row).items():
        known.setdefault(name.partition(".")[0], []).append((name, str(value)))
    known |= {"sampling": [("sampling", sampling_of(row)), *known["sampling"]]}
    known |= {"digest": [("digest", digest)], "format": [("format", str(row.format))]}
    for heading, fields in SECTIONS.items():
        yield heading, [fact for field in fields for fact in known.get(field, [])]


MEANINGS = {
    "draft": "passes of the drafter", "verify": "passes of the target",
    "rule and sampling": "verification and sampling", "tokenizer": "text and tokens",
    "other": "the rest: Python, bookkeeping", "overhead": "verification rules, sampling, tokenizers, Python",
}  # fmt: skip


LONGEST = 1e12  # milliseconds of a token, thirty years


def time_parts(row: Row) -> dict[str, float]:
    """Returns the milliseconds per token after the first by part; they sum to 1000 ÷ tok/s. The overhead is one part if
    the row lacks its parts. Empty if the row lacks the times of its passes, or has impossible ones."""
    spent = per_token(row)
    known = {name: value for name, value in spent.items() if name != "all" and value is not None}
    if spent["all"] is None or not {"draft", "verify"} <= known.keys() or not sum(known.values()) < LONGEST:
        return {}
    if len(known) == len(spent) - 1:
        return known
    parts = {"draft": known["draft"], "verify": known["verify"]}
    return {**parts, "overhead": max(0.0, spent["all"] - sum(parts.values()))}


def accepted_counts(side: RowWithRecords) -> tuple[Sequence[int], str]:
    """Returns the number of target passes by accepted draft tokens, of the row, or of its records if the row lacks
    them. Without any, the reason."""
    if decodes_alone(side.row):
        return (), "Nothing is drafted: one model decodes alone, one token per pass."
    counts = side.row.accepted_tokens_per_step
    if counts is None and side.method is not None and side.own:
        counts = accepted_tokens_per_step(side.own, side.method.most_draft_tokens)
    if counts and sum(counts):
        return counts, ""
    return (), "Unknown: neither the row nor its records have the steps of its answers."


def conditions_of(row: Row) -> list[tuple[str, str]]:
    """Returns the conditions of a row as names and values."""
    repeats = f", {row.repeats} times each" if row.repeats > 1 else ""
    drafter = model_name(row.drafter, row.drafter_revision) if row.drafter else ""
    drafts = "" if row.is_baseline else draft_length(row)
    found = {
        "target": model_name(row.target, row.target_revision), "drafter": drafter, "drafts": drafts,
        "machine": row.device, "engine": row.engine, "dtype": row.dtype, "sampling": sampling_of(row),
        "examples": f"{row.n if row.coverage is None else row.told_examples}{repeats}", "load": row.level,
        "seed": str(row.seed),
    }  # fmt: skip
    return [(name, text) for name, text in found.items() if text]


def row_page(
    entry: SiteRow, subsets: Sequence[SiteRow], peers: Sequence[SiteRow], baseline: Row | None
) -> dict[str, object]:
    """Returns the template values of a row's page. `subsets`: the rows of all subsets. `peers`: rows with which it
    compares, itself included. `baseline`: AR's row of the same run."""
    row = entry.row
    measured = [row] if baseline is None or baseline is row else [baseline, row]
    known = [each for each in subsets if each.row.value("speedup") is not None and not each.row.is_baseline]
    counts, why_unknown = accepted_counts(entry.side)
    plain = row.metric("tokens_per_second_ar")
    # Metrics without a value come last.
    metrics = [
        (name, _number(metric.value), interval_of(metric, _number), *_meaning(name))
        for name, metric in sorted(row.metrics.items(), key=lambda each: each[1].value is None)
    ]
    return {
        "entry": entry, "verdict": verdict_of(row), "lossless": lossless_word(row), "peers": peers,
        "subsets": known if len(known) > 1 else [], "counts": counts, "why_unknown": why_unknown,
        "times": [(each.method_name, parts) for each in measured if (parts := time_parts(each))],
        "meanings": MEANINGS, "conditions": conditions_of(row), "metrics": metrics,
        "facts": list(provenance(row, entry.digest)),
        "baseline_speed": "" if plain.value is None else f"baseline {speed(plain)}",
    }  # fmt: skip


@cache
def _meaning(name: str) -> tuple[str, str]:
    known = find_metric(name)
    return (known.unit, known.explanation) if known else ("", "a metric of a plug-in: see its scorer")


def _number(value: float | None) -> str:
    if value is None:
        return NULL
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


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
