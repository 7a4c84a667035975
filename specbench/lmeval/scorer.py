"""Answers judged by a task of lm-eval: its filters, its metrics, its aggregations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from math import isfinite
from typing import Any

from lm_eval.api.metrics import mean, nanmean
from lm_eval.api.registry import get_aggregation
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from specbench.errors import ConfigError
from specbench.lmeval.held import HELD, HeldTask, metric_of
from specbench.registry import SCORERS
from specbench.scoring.contract import Reference, Score, unscored

SUMMED: dict[str, Callable[[], Any]] = {  # with lm-eval's settings
    "bleu": BLEU, "chrf": CHRF, "chrf++": lambda: CHRF(word_order=2), "ter": TER,
}  # fmt: skip


class HarnessScorer:
    """Metrics by lm-eval's names, "METRIC,FILTER". A reference tells the document: {"doc": its number, "target": …}.

    Means are means. BLEU, chrF, chrF++ and TER come from the sums of sacrebleu's statistics, which is lm-eval's value
    where all documents have equally many references. Of any other aggregation the value of one answer is that of the
    aggregation over it alone; lm-eval's value over all answers is what `aggregate` gives.
    """

    def __init__(self, held: HeldTask) -> None:
        self._held = held

    @property
    def names(self) -> tuple[str, ...]:
        return self._held.names

    @cached_property
    def _summed(self) -> dict[str, Any]:
        known = {get_aggregation(name): make for name, make in SUMMED.items()}
        found = {name: known.get(self._held.aggregation(name)) for name in self.names}
        return {name: make() for name, make in found.items() if make is not None}

    def __call__(self, text: str, reference: Reference) -> Score:
        try:
            items = self._held.items(self._doc(reference), text)
        except ConfigError:
            raise
        except Exception as error:  # lm-eval's code, or the task's own: it meets answers that nobody has seen
            return unscored(self.names, f"lm-eval's judgement fails: {type(error).__name__}: {error}")
        values = {name: self._value(name, items[name]) if name in items else None for name in self.names}
        statistics = {name: counts(metric, items[name]) for name, metric in self._summed.items() if name in items}
        return Score(values, statistics)

    def check_reference(self, reference: Reference) -> None:
        """Raise ConfigError for a reference that is no document of the task."""
        self._doc(reference)

    def _doc(self, reference: Reference) -> int:
        number = reference.get("doc", "") if isinstance(reference, dict) else ""
        if not number.isdecimal() or int(number) >= len(self._held.docs):
            raise ConfigError(f"reference {reference!r}: no document of lm-eval's task '{self._held.name}'")
        return int(number)

    def _value(self, name: str, item: Any) -> float | None:
        aggregation = self._held.aggregation(name)
        try:
            value = float(item if aggregation in (mean, nanmean) else aggregation([item]))
        except Exception:  # one answer may be too few, as for a correlation
            return None
        return value if isfinite(value) else None

    def corpus(self, name: str, sums: Sequence[float]) -> float:
        metric = self._summed[name]
        whole = list(sums) if isinstance(metric, TER) else [int(count) for count in sums]
        return float(metric._compute_score_from_stats(whole).score)

    def aggregate(self, answers: Iterable[tuple[str, Reference]]) -> dict[str, float]:
        """Exactly lm-eval's value of every metric over (text, reference) pairs. Raises what lm-eval's code raises."""
        made = [self._held.items(self._doc(reference), text) for text, reference in answers]
        columns = {name: [items[name] for items in made if name in items] for name in self.names}
        return {name: float(self._held.aggregation(name)(column)) for name, column in columns.items() if column}

    @property
    def signature(self) -> Mapping[str, str]:
        task = self._held.task
        base = f"lm-eval {version('lm_eval')}, task {self._held.name} {task.VERSION}, filter "
        return {name: base + name.rpartition(",")[2] + self._deviation(name) for name in self.names}

    def _deviation(self, name: str) -> str:
        """Said where the value over all answers is not lm-eval's."""
        aggregation = self._held.aggregation(name)
        if aggregation in (mean, nanmean) or name in self._summed:
            return ""
        return f", mean over documents of {getattr(aggregation, '__name__', metric_of(name))}, which lm-eval takes once"


def counts(metric: Any, item: Any) -> list[float]:
    """sacrebleu's statistics of one (references, answer) pair of lm-eval."""
    references, answer = item
    texts = [references] if isinstance(references, str) else list(references)
    text = answer if isinstance(answer, str) else answer[0]
    return [float(count) for count in metric._extract_corpus_statistics([text], [[each] for each in texts])[0]]


@SCORERS.register("lm_eval")
def lm_eval(*, task: str, config: str) -> HarnessScorer:
    """The filters and metrics of a task of lm-eval, which --task lm_eval:NAME has loaded."""
    if (task, config) not in HELD:
        raise ConfigError(f"scorer.task = {task!r}: not loaded: give the task as --task lm_eval:{task}")
    return HarnessScorer(HELD[task, config])
