"""How scores are shown: under which name, times what, with how many digits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from specbench.results.bootstrap import Metric
from specbench.results.cells import NULL, number


@dataclass(frozen=True)
class Unit:
    """`label`: the name with its unit. A value is shown times `factor`; `most`: how far two values can be apart."""

    label: str
    factor: float = 1.0
    digits: int = 1
    most: float = 1.0


SHARES = {
    "accuracy": "accuracy", "f1": "F1", "exact_match": "exact match", "rougeL": "ROUGE-L", "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2", "loop_free": "loop-free", "language_share": "asked language", "repetition_rate": "repetition",
}  # fmt: skip
OTHERS = {
    "bleu": Unit("BLEU", most=100.0),
    "chrf": Unit("chrF++", most=100.0),
    "judge_score": Unit("judge 1–10", digits=2, most=9.0),
}
PASS_AT = re.compile(r"pass@(\d+)")


def unit_of(name: str | None) -> Unit:
    """The unit of a score; one that is not ours is shown as it is, under its own name."""
    if name is None:
        return Unit("score")
    metric, comma, filtered = name.partition(",")  # lm-eval's names: METRIC,FILTER
    if metric in SHARES or PASS_AT.fullmatch(metric):
        return Unit(f"{SHARES.get(metric, metric)}{comma}{filtered} %", factor=100.0)
    unit = OTHERS.get(metric, Unit(metric, digits=3))
    return replace(unit, label=f"{unit.label}{comma}{filtered}")


def pair(metrics: Mapping[str, Metric], name: str | None) -> str:
    """The score of the baseline and of the method: "62.5 → 60.0"."""
    unit = unit_of(name)
    both = [number(metrics.get(key), unit.digits, unit.factor) for key in (f"{name}_ar", f"{name}")]
    return NULL if both == [NULL, NULL] else " → ".join(both)
