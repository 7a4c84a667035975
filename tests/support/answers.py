"""Metrics of records: their answers are what `specbench.results` computes them from."""

from collections.abc import Sequence
from typing import Any

from specbench.records.records import Record
from specbench.results import metrics
from specbench.results.answers import BASELINE, answers_of
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import Estimate


def summarize(
    records: Sequence[Record], method: str, decodes_with: str = "target", scoring: Any = None, **options: Any
) -> dict[str, Estimate]:
    languages = {subset: each.code for subset, each in (scoring or {}).items()}
    own = answers_of(records, method, decodes_with, languages)
    baseline = answers_of(records, BASELINE, languages=languages)
    return metrics.summarize(
        own, baseline, is_baseline=method == BASELINE, decodes_with=decodes_with, scoring=scoring, **options
    )


def metrics_of(records: Sequence[Record], method: MethodSpec) -> dict[str, Estimate]:
    own = answers_of(records, method.name, method.decodes_with)
    return metrics.metrics_of(own, answers_of(records, BASELINE), method)
