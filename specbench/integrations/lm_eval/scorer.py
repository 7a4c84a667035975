"""Scoring of answers by an lm-eval task, with its filters, metrics and aggregations."""

import json
import logging
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from inspect import getsource, getsourcefile
from io import StringIO
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean, nanmean
from lm_eval.api.registry import get_aggregation
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from specbench.core.errors import ConfigError
from specbench.core.source import digest_of, source_files
from specbench.core.values import text_digest
from specbench.tasks.scoring import Reference, Score, Scorer, unscored

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
PLACES = ("dataset_kwargs", "metadata")  # where rows are; a run has a digest of its prompts instead
MetricItems = dict[str, object]  # "METRIC,FILTER" → the metric's item of one answer


@dataclass(frozen=True)
class LoadedTask:
    """A loaded lm-eval task. `name`: lm-eval's name."""

    name: str
    task: Any

    @cached_property
    def config(self) -> str:
        """Returns a 12-digit digest of the task's configuration, of a user's code in it, and of lm-eval's version."""
        meaning = {key: value for key, value in self.task.dump_config().items() if key not in PLACES}
        # The modules of a user's functions and class; lm-eval's own have its version.
        values = vars(self.task.config).values()
        inner = chain.from_iterable(metric.values() for metric in self.task.config.metric_list or ())
        functions: list[Any] = [type(self.task), *filter(callable, (*values, *inner))]
        files = []
        for value in functions:
            with suppress(TypeError, OSError):  # built-in functions
                file = Path(getsourcefile(value) or "").resolve()
                if not file.is_relative_to(Path(lm_eval.__file__).resolve().parent):
                    files.append((file.stem, file))

        def source_or_repr(value: Any) -> str:
            try:
                return getsource(value)
            except (TypeError, OSError):
                return ADDRESS.sub("", repr(value))  # addresses differ between runs

        code = [each for each in [digest_of(source_files(files))] if each is not None]
        text = json.dumps([version("lm_eval"), meaning, *code], sort_keys=True, default=source_or_repr)
        return text_digest(text)

    @cached_property
    def docs(self) -> list[Any]:
        return list(self.task.eval_docs)

    def instances(self, limit: int | None) -> list[Instance]:
        """Returns the first `limit` requests with lm-eval's own seeds, including few-shot examples."""
        self.task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        with quiet(), seeded():
            self.task.build_all_requests(limit=limit)
        return list(self.task.instances)

    def items(self, doc_id: int, text: str) -> MetricItems:
        """Returns each metric's item for an answer, after each filter. Exceptions of lm-eval's code propagate."""
        doc = self.docs[doc_id]
        instance = Instance("generate_until", doc, ("", {}), 0, (self.name, doc_id, 1), resps=[text])
        for filter_ in self.task._filters:
            filter_.apply([instance])
        return {
            f"{metric},{key}": item
            for key, filtered in instance.filtered_resps.items()
            for metric, item in self.task.process_results(doc, [filtered]).items()
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Returns the metrics with filters in lm-eval's order, but first one for which higher is better."""
        try:
            names = list(self.items(0, ""))
        except Exception:  # a metric may fail on an empty answer
            keys = [filter_.name for filter_ in self.task._filters]
            names = [f"{metric},{key}" for key in keys for metric in self.task.aggregation()]
        better = self.task.higher_is_better()
        main = next((name for name in names if better.get(metric_of(name), True)), names[0])
        return (main, *(name for name in names if name != main))

    def aggregation(self, name: str) -> Callable[[list[Any]], float]:
        """Returns the task's aggregation of the items of all answers, by default the mean."""
        found: Callable[[list[Any]], float] = self.task.aggregation().get(metric_of(name), mean)
        return found


def metric_of(name: str) -> str:
    return name.rpartition(",")[0]


@contextmanager
def seeded() -> Iterator[None]:
    """Sets lm-eval's seeds for tasks that draw while they load. Restores the generators afterwards."""
    states = random.getstate(), np.random.get_state()
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses lm-eval's progress bars and log messages. Its errors are exceptions."""
    log = logging.getLogger("lm_eval")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        log.setLevel(level)


CORPUS_METRICS: dict[str, Callable[[], Any]] = {  # with lm-eval's settings
    "bleu": BLEU, "chrf": CHRF, "chrf++": lambda: CHRF(word_order=2), "ter": TER,
}  # fmt: skip


class LmEvalScorer(Scorer):
    """Metrics with lm-eval's names, "METRIC,FILTER". A reference identifies the document: {"doc": its number, "target":
    …}.

    Means are averaged. BLEU, chrF, chrF++ and TER are computed from sums of sacrebleu's statistics, which gives
    lm-eval's value if all documents have equally many references. For any other aggregation, an answer's value is the
    aggregation over this answer alone.
    """

    def __init__(self, loaded: LoadedTask) -> None:
        self._loaded = loaded
        self.names = loaded.names

    @cached_property
    def _summed(self) -> dict[str, BLEU | CHRF | TER]:
        known = {get_aggregation(name): make for name, make in CORPUS_METRICS.items()}
        found = {name: known.get(self._loaded.aggregation(name)) for name in self.names}
        return {name: make() for name, make in found.items() if make is not None}

    def __call__(self, text: str, reference: Reference) -> Score:
        try:
            items = self._loaded.items(self._doc(reference), text)
        except ConfigError:
            raise
        except Exception as error:  # code of lm-eval or of the task may fail on any answer
            return unscored(self.names, f"lm-eval's judgement fails: {type(error).__name__}: {error}")
        values = {name: self._value(name, items[name]) if name in items else None for name in self.names}
        statistics = {}
        for name, metric in self._summed.items():
            if name in items:  # sacrebleu's statistics of an item (references, answer)
                item: Any = items[name]
                references, answer = item
                texts = [references] if isinstance(references, str) else list(references)
                own = answer if isinstance(answer, str) else answer[0]
                counts = metric._extract_corpus_statistics([own], [[each] for each in texts])[0]
                statistics[name] = [float(count) for count in counts]
        return Score(values, statistics)

    def check_reference(self, reference: Reference) -> None:
        self._doc(reference)

    def _doc(self, reference: Reference) -> int:
        """Returns the number of a document. Raises ConfigError if the reference is not one of the task's."""
        number = reference.get("doc", "") if isinstance(reference, dict) else ""
        if not number.isdecimal() or int(number) >= len(self._loaded.docs):
            raise ConfigError(f"reference {reference!r}: no document of lm-eval's task '{self._loaded.name}'")
        return int(number)

    def _value(self, name: str, item: Any) -> float | None:
        aggregation = self._loaded.aggregation(name)
        try:
            value = float(item if aggregation in (mean, nanmean) else aggregation([item]))
        except Exception:  # some metrics, such as a correlation, need several answers
            return None
        return value if isfinite(value) else None

    def corpus(self, name: str, sums: Sequence[float]) -> float:
        metric = self._summed[name]
        whole: Any = list(sums) if isinstance(metric, TER) else [int(count) for count in sums]
        return float(metric._compute_score_from_stats(whole).score)

    @property
    def signature(self) -> Mapping[str, str]:
        task = self._loaded.task
        found = {}
        for name in self.names:
            found[name] = f"lm-eval {version('lm_eval')}, task {self._loaded.name} {task.VERSION}, filter "
            found[name] += name.rpartition(",")[2]
            aggregation = self._loaded.aggregation(name)
            if aggregation not in (mean, nanmean) and name not in self._summed:  # then the value is not lm-eval's
                called = getattr(aggregation, "__name__", metric_of(name))
                found[name] += f", mean over documents of {called}, which lm-eval takes once"
        return found
