"""The text of a figure: its value, unit and interval."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specbench.results.bootstrap import SHARE, Bounds, Metric

NULL = "–"  # the cell of a value that does not exist


def short(versioned: str) -> str:
    """Returns name@version of name@version:digest."""
    return versioned.partition(":")[0]


def number(metric: Metric | float | None, digits: int, factor: float = 1, sign: str = "") -> str:
    """Returns a value as a table shows it: times `factor`, with `digits` decimals. `sign`: "+" shows the plus too."""
    value = metric.value if isinstance(metric, Metric) else metric
    return NULL if value is None else f"{factor * value:{sign}z.{digits}f}"


def speed(metric: Metric | None) -> str:
    """Returns tokens/s: with one decimal below 1000."""
    return number(metric, 1 if metric is None or (metric.value or 0) < 1000 else 0)


def interval(metric: Metric | None, digits: int = 2, factor: float = 1, sign: str = "") -> str:
    """Returns the 95 % interval, such as "[1.20, 1.31]"; empty where there is none."""
    if metric is None or metric.low is None or metric.high is None:
        return ""
    low, high = (f"{factor * end:{sign}z.{digits}f}" for end in (metric.low, metric.high))
    return f"[{low}, {high}]"


def with_interval(metric: Metric | None, digits: int = 2, factor: float = 1, sign: str = "") -> str:
    """Returns the value and its 95 % interval, such as "1.25 [1.20, 1.31]"; the value alone where there is none."""
    return f"{number(metric, digits, factor, sign)} {interval(metric, digits, factor, sign)}".rstrip()


@dataclass(frozen=True)
class Unit:
    """The way a score is printed.

    `label` is its name with the unit. The printed value is the value times `factor`. `most` is the largest possible
    difference of two values.
    """

    label: str
    factor: float = 1.0
    digits: int = 1
    most: float = 1.0


SHARES = {
    "accuracy": "accuracy", "f1": "F1", "exact_match": "exact match", "contained": "contained",
    "share_contained": "share contained", "rougeL": "ROUGE-L", "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2", "loop_free": "loop-free",
    "language_share": "asked language", "repetition_rate": "repetition",
}  # fmt: skip
OTHERS = {
    "bleu": Unit("BLEU", most=100.0),
    "chrf": Unit("chrF++", most=100.0),
    "judge_score": Unit("judge 1–10", digits=2, most=9.0),
}
RATINGS: Bounds = (1.0, 10.0)
PERCENT: Bounds = (0.0, 100.0)
PASS_AT = re.compile(r"pass@(\d+)")


def unit_of(name: str | None) -> Unit:
    """Returns the unit of a score. A score of a plug-in is shown as it is, under its own name."""
    if name is None:
        return Unit("score")
    if "," in name:  # lm-eval's, METRIC,FILTER: some of its tasks have shares, some percentages under one name
        return Unit(name, digits=3, most=OTHERS.get(name.partition(",")[0], Unit("")).most)
    if name in SHARES or PASS_AT.fullmatch(name):
        return Unit(f"{SHARES.get(name, name)} %", factor=100.0)
    return OTHERS.get(name, Unit(name, digits=3))


def bounds_of(name: str) -> Bounds | None:
    """Returns the least and the greatest value of a score; None for a score of a plug-in."""
    if name in SHARES or PASS_AT.fullmatch(name):
        return SHARE
    return {"bleu": PERCENT, "chrf": PERCENT, "judge_score": RATINGS}.get(name)


def score(metric: Metric | None, name: str | None) -> str:
    """Returns a value of the score `name` with its 95 % interval, in its unit."""
    unit = unit_of(name)
    return with_interval(metric, unit.digits, unit.factor)


def pair(metrics: Mapping[str, Metric], name: str | None) -> str:
    """Returns the score of the baseline and of the method, such as "62.5 → 60.0"."""
    unit = unit_of(name)
    both = [number(metrics.get(key), unit.digits, unit.factor) for key in (f"{name}_ar", f"{name}")]
    return NULL if both == [NULL, NULL] else " → ".join(both)


def names_by_text(pairs: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Returns each text once, with the names of what it is about. `pairs`: name and text, None where it has none."""
    names: dict[str, dict[str, None]] = {}
    for name, text in pairs:
        if text is not None:
            names.setdefault(text, {})[name] = None
    return {text: list(own) for text, own in names.items()}
