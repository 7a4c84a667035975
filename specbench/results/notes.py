"""Rows → what must be said of their scores: how they were computed, in which language, what is missing."""

from collections import Counter
from collections.abc import Sequence

from specbench.results.quality import JUDGED
from specbench.results.row import Row
from specbench.results.units import pair, unit_of
from specbench.running.records import Record

IN_LANGUAGE = 0.9  # a smaller share of answers in the asked language is said of any task


def heading(rows: Sequence[Row]) -> str:
    """The name and unit of the score of these rows; of several scores "score", each named by `notes`."""
    names = {row.quality for row in rows if row.quality is not None}
    return unit_of(names.pop()).label if len(names) == 1 else "score"


def notes(rows: Sequence[Row]) -> list[str]:
    """A line for each thing to be said of the scores of one task and one method."""
    lines = []
    if len({row.quality for row in rows if row.quality is not None}) > 1:
        lines.append(f"score: {_listed(rows, [row.quality and unit_of(row.quality).label for row in rows])}")
    parts = [row for row in rows if row.subset != "all"] or rows
    for name in dict.fromkeys(name for row in parts for name in row.signatures):
        texts = [row.signatures.get(name) for row in parts]
        lines.append(f"{unit_of(name).label}: {_listed(parts, texts) if len({*texts}) > 1 else texts[0]}")
    for name in (JUDGED, "language_share", "repetition_rate"):
        shown = [pair(row.metrics, name) if _is_said(row, name) else None for row in rows]
        if any(shown):
            lines.append(f"{unit_of(name).label}, ar → method: {_listed(rows, shown)}")
    untold = ["cannot be told" if _asks_in_vain(row) else None for row in parts]
    if any(untold):
        lines.append(f"language of the answers: {_listed(parts, untold)}")
    unscored = [_value(row, "num_unscored") for row in rows]
    if any(unscored):
        counts = [f"{count:.0f} answers" if count else None for count in unscored]
        lines.append(f"not scored, and in no mean: {_listed(rows, counts)}")
    ended = [_value(row, "num_programs_ended") for row in rows]
    if any(ended):
        counts = [f"{count:.0f} answers" if count else None for count in ended]
        lines.append(f"programs that a limit ended (time, output), counted as wrong: {_listed(rows, counts)}")
    unjudged = [_value(row, "num_unjudged") for row in rows]
    if any(unjudged):
        counts = [f"{count:.0f} answers" if count else None for count in unjudged]
        lines.append(f"not rated by the judge, and in no mean of its ratings: {_listed(rows, counts)}")
    truncated = [_value(row, "share_truncated") for row in rows]
    if any(truncated):
        shares = [f"{share:.0%}" if share else None for share in truncated]
        lines.append(f"prompts that lost their middle to fit the context: {_listed(rows, shares)}")
    return lines


def why_unscored(records: Sequence[Record]) -> str | None:
    """The most frequent reason for which answers have no score, in one line; None where all that should have one do."""
    generations = (generation for record in records for generation in record["methods"].values())
    problems = Counter(generation["problem"] for generation in generations if generation.get("problem"))
    if not problems:
        return None
    reason, count = problems.most_common(1)[0]
    num_other = problems.total() - count
    other = f"; {num_other} for other reasons (see `problem` in the records)" if num_other else ""
    return f"not scored: {count} answers, because {' '.join(reason.split())}{other}"


def _is_said(row: Row, name: str) -> bool:
    """Of texts without a reference all is said; of others only that many are in another language, and what a judge
    says beside their own score."""
    if name == JUDGED:
        return row.quality != JUDGED and any(_value(row, each) for each in (name, f"{name}_ar"))
    low = name == "language_share" and min(_value(row, name, 1.0), _value(row, f"{name}_ar", 1.0)) < IN_LANGUAGE
    return name in row.metrics and (row.quality == "loop_free" or low)


def _asks_in_vain(row: Row) -> bool:
    """Whether nothing tells a story in the language that was asked for from one in another."""
    metric = row.metrics.get("language_share")
    return row.quality == "loop_free" and row.subset != "all" and (metric is None or metric.value is None)


def _listed(rows: Sequence[Row], texts: Sequence[str | None]) -> str:
    """The texts with the subsets of each."""
    subsets: dict[str, list[str]] = {}
    for row, text in zip(rows, texts, strict=True):
        if text is not None:
            subsets.setdefault(text, []).append(row.subset)
    return "; ".join(f"{text} in {', '.join(names)}" for text, names in subsets.items())


def _value(row: Row, name: str, default: float = 0.0) -> float:
    metric = row.metrics.get(name)
    return default if metric is None or metric.value is None else metric.value
