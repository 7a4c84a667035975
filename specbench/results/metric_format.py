"""The declaration of every metric by its name, and the printed form of values and intervals."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache

from specbench.core.console import speed_text
from specbench.core.errors import ConfigError
from specbench.core.metric import PERCENT, Bounds, Metric
from specbench.core.registry import SCORERS
from specbench.results.row_metrics import OTHER_SCORES, ROW_METRICS
from specbench.statistics.bootstrap import Estimate

NULL = "–"  # the cell of a value that does not exist


def without_digest(versioned: str) -> str:
    """Returns the name@version part of name@version:digest."""
    return versioned.partition(":")[0]


def number(metric: Estimate | float | None, digits: int, factor: float = 1, sign: str = "") -> str:
    """Returns a value as tables show it: times `factor`, with `digits` decimals. `sign`: "+" also shows a plus."""
    value = metric.value if isinstance(metric, Estimate) else metric
    return NULL if value is None else _fixed(factor * value, digits, sign)


def _fixed(value: float, digits: int, sign: str) -> str:
    """Returns a number with so many decimals; one of more than fifteen digits, which no measurement is, with three."""
    return f"{value:{sign}z.{digits}f}" if abs(value) < 1e15 else f"{value:{sign}.3g}"


def speed(metric: Estimate | None) -> str:
    """Returns tokens/s as tables show it: with one decimal below 1000, else without."""
    return NULL if metric is None or metric.value is None else speed_text(metric.value)


def interval(metric: Estimate | None, digits: int = 2, factor: float = 1, sign: str = "") -> str:
    """Returns the 95 % interval, such as "[1.20, 1.31]"; empty where there is none."""
    return interval_of(metric, lambda end: _fixed(factor * end, digits, sign))


def interval_of(metric: Estimate | None, text: Callable[[float], str]) -> str:
    """Returns the 95 % interval; `text`: formats its ends."""
    if metric is None or metric.low is None or metric.high is None:
        return ""
    return f"[{text(metric.low)}, {text(metric.high)}]"


def with_interval(metric: Estimate | None, digits: int = 2, factor: float = 1, sign: str = "") -> str:
    """Returns the value and its 95 % interval, such as "1.25 [1.20, 1.31]"; only the value if there is no interval."""
    return f"{number(metric, digits, factor, sign)} {interval(metric, digits, factor, sign)}".rstrip()


OF_SCORES = {
    "_ar": "the baseline's score, over the answers for which both have one",
    "_difference": "method − baseline, paired by example",
}


@cache
def _load_scorers() -> None:
    for name in SCORERS.names():
        with suppress(ConfigError):  # a plug-in that cannot be loaded: its metrics are shown under their names
            SCORERS.get(name)


def scores() -> dict[str, Metric]:
    """Returns the metrics that scorers declare, those of plug-ins and of Python objects included."""
    _load_scorers()
    return _declared()


def _declared() -> dict[str, Metric]:
    return {metric.name: metric for features in SCORERS.declared() for metric in features.metrics} | OTHER_SCORES


def all_metrics() -> dict[str, Metric]:
    """Returns all declared metrics by name, then what rows derive from every score."""
    derived = (Metric(f"…{end}", "as the score", f"of every score above: {text}") for end, text in OF_SCORES.items())
    return ROW_METRICS | scores() | {each.name: each for each in derived}


def find_metric(name: str) -> Metric | None:
    """Returns the declaration of a metric; None for one that is not declared, as plug-ins and lm-eval may have."""
    base, comma, _ = name.partition(",")  # METRIC,FILTER of lm-eval, whose tasks have shares or percentages
    pattern = re.sub(r"@\d+$", "@k", base)
    # A run has loaded its own scorers; the others are imported only for a name that these do not declare.
    found = ROW_METRICS.get(pattern) or _declared().get(pattern)
    for end, text in OF_SCORES.items() if found is None else ():
        if base.endswith(end) and (of := find_metric(base.removesuffix(end))) is not None:
            return replace(of, name=name, meaning=f"{of.name}: {text}", formula="")
    if found is None and (found := scores().get(pattern)) is None:
        return None
    if comma:
        bounds = found.bounds if found.bounds == PERCENT else None
        return replace(found, name=name, label=name, factor=1.0, digits=3, bounds=bounds)
    return found.numbered(base[len(pattern) - 2 :]) if pattern != base else found


def metric_of(name: str | None) -> Metric:
    """Returns the declaration of a metric. One that is not declared is shown unchanged under its name."""
    if name is None:
        return Metric("score", "", "", digits=1)
    return find_metric(name) or Metric(name, "", "", lower_is_better="perplexity" in name)


def bounds_of(name: str) -> Bounds | None:
    """Returns the least and the greatest value of a score; None if they are unknown, as for scores of lm-eval."""
    return None if "," in name else metric_of(name).bounds


def score(metric: Estimate | None, name: str | None) -> str:
    """Returns a value of the score `name` with its 95 % interval, in its unit."""
    unit = metric_of(name)
    return with_interval(metric, unit.digits, unit.factor)


def score_of_answer(value: float | None, name: str) -> str:
    """Returns the score `name` of one answer with the decimals of its unit, such as "95.2 %"."""
    unit = metric_of(name)
    shown = number(value, unit.digits, unit.factor)
    return f"{shown} %" if value is not None and unit.label.endswith("%") else shown


def score_pair(metrics: Mapping[str, Estimate], name: str | None) -> str:
    """Returns the scores of the baseline and of the method, such as "62.5 → 60.0"."""
    unit = metric_of(name)
    both = [number(metrics.get(key), unit.digits, unit.factor) for key in (f"{name}_ar", f"{name}")]
    return NULL if both == [NULL, NULL] else " → ".join(both)


def names_by_text(pairs: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Returns each text once with its names. `pairs`: (name, text); a text of None is left out."""
    names: dict[str, dict[str, None]] = {}
    for name, text in pairs:
        if text is not None:
            names.setdefault(text, {})[name] = None
    return {text: list(found) for text, found in names.items()}
