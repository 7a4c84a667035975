"""How scores are shown: under which name, times what, with how many digits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from specbench.results.bootstrap import Metric
from specbench.results.shares import SHARE, Bounds

NULL = "–"


def short(versioned: str) -> str:
    """name@version:digest → name@version"""
    return versioned.partition(":")[0]


def number(metric: Metric | None, digits: int, factor: float = 1) -> str:
    if metric is None or metric.value is None:
        return NULL
    return f"{factor * metric.value:.{digits}f}"


def speed(metric: Metric | None) -> str:
    return number(metric, 1 if metric is None or (metric.value or 0) < 1000 else 0)


def with_interval(metric: Metric | None) -> str:
    if metric is None or metric.low is None or metric.high is None:
        return number(metric, 2)
    return f"{metric.value:.2f} [{metric.low:.2f}, {metric.high:.2f}]"


@dataclass(frozen=True)
class Unit:
    """`label`: the name with its unit. A value is shown times `factor`; `most`: how far two values can be apart."""

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
    """The unit of a score; one that is not ours is shown as it is, under its own name."""
    if name is None:
        return Unit("score")
    if "," in name:  # lm-eval's, METRIC,FILTER: some of its tasks have shares, some percentages under one name
        return Unit(name, digits=3, most=OTHERS.get(name.partition(",")[0], Unit("")).most)
    if name in SHARES or PASS_AT.fullmatch(name):
        return Unit(f"{SHARES.get(name, name)} %", factor=100.0)
    return OTHERS.get(name, Unit(name, digits=3))


def bounds_of(name: str) -> Bounds | None:
    """The least and the most that a score can be; None for one that is not ours."""
    if name in SHARES or PASS_AT.fullmatch(name):
        return SHARE
    return {"bleu": PERCENT, "chrf": PERCENT, "judge_score": RATINGS}.get(name)


def pair(metrics: Mapping[str, Metric], name: str | None) -> str:
    """The score of the baseline and of the method: "62.5 → 60.0"."""
    unit = unit_of(name)
    both = [number(metrics.get(key), unit.digits, unit.factor) for key in (f"{name}_ar", f"{name}")]
    return NULL if both == [NULL, NULL] else " → ".join(both)
