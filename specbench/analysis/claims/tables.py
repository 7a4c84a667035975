"""Tables of claims and of their explanations."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill

import numpy as np

from specbench.analysis.claims.claim import Reading
from specbench.analysis.claims.explain import Explanation, Part
from specbench.core.table import Table, number_columns, text_columns
from specbench.results.metric_format import NULL, interval, interval_of, number, with_interval

WIDTH = 100  # characters of a line of sentences
EXACT = "the factors of S's parts multiply to that of S, since S = τ ÷ R; those of R's parts to that of R"


def claims_table(readings: Iterable[Reading]) -> Table:
    """Returns a line for each claim: what it tells, and what follows."""
    columns = (*text_columns("claim", folds=False), *number_columns("S", "τ", "R", "S at\nmost"),
               *text_columns("verdict", "source"))  # fmt: skip
    rows = [
        (each.name, with_interval(each.speedup), number(each.mean_acceptance_length, 2), number(each.step_cost, 2),
         number(each.highest_speedup, 2), each.verdict, each.source)
        for each in readings
    ]  # fmt: skip
    caption = [
        "S: speed-up; τ: tokens per step, the target's own included; R = τ ÷ S: time of a step in tokens of AR",
        "S at most: above it a speed-up is implausible (batch 1, AR of the same engine)",
    ]
    return Table("claims", columns, rows, caption)


def reading_lines(reading: Reading) -> Iterator[str]:
    """Yields what a claim implies, in sentences."""
    yield f"{reading.name}: {reading.title}"
    yield f"  {reading.source}"
    yield f"  {reading.url}"
    for label, value in (
        ("speed-up S", with_interval(reading.speedup)), ("τ", number(reading.mean_acceptance_length, 2)),
        ("R = τ ÷ S", number(reading.step_cost, 2)),
        *((f"  {name}", number(value, 2)) for name, value in (reading.costs or {}).items()),
    ):  # fmt: skip
        yield f"  {label:<14}{value}"
    yield from (f"  {note}" for note in reading.conversions)
    yield f"  {reading.verdict}: {reading.reason}"


def explanation_parts(found: Sequence[Explanation]) -> Iterator[Table | str]:
    """Yields the tables and the sentences of each explanation."""
    for each in found:
        yield gap_table(each)
        yield conditions_table(each)
        yield "\n".join(fill(line, WIDTH) for line in each.words) + "\n"


def gap_table(found: Explanation) -> Table:
    figures = number_columns("claimed", "measured", "95 % interval", "factor of\nthe gap", "95 % interval")
    columns = (*text_columns("part", folds=False), *figures)
    caption = [f"speed-ups of {found.speedup_of}; {EXACT}"]
    caption += [*found.claim.conversions, *found.unsplit, f"the claim is {found.claim.verdict}: {found.claim.reason}"]
    if found.implausible is not None:
        caption.append(found.implausible)
    title = f"{found.claim.name} · {found.task} · {found.subset} · {found.method}"
    return Table(title, columns, [*_lines(found.gap, 0)], caption)


def _lines(parts: Sequence[Part], depth: int) -> Iterator[tuple[str, ...]]:
    for part in parts:
        digits = 1 if part.unit else 2
        label = f"{part.name}, {part.unit}" if part.unit else part.name
        factor = None if part.log.value is None else float(np.exp(part.log.value))
        ends = interval_of(part.log, lambda end: f"{np.exp(end):.2f}")
        yield (
            "  " * depth + label, number(part.claimed, digits), number(part.measured, digits),
            interval(part.measured, digits), NULL if factor is None else f"× {factor:.2f}", ends,
        )  # fmt: skip
        yield from _lines(part.parts, depth + 1)


def conditions_table(found: Explanation) -> Table:
    rows = [(each.name, each.claimed, each.measured) for each in found.conditions]
    return Table("conditions", text_columns("", "claim", "run"), rows, ["only those that the claim tells"])
