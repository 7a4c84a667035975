"""A task of lm-eval that is loaded: its documents, their prompts, and the judgement of answers by its own code."""

import hashlib
import json
import logging
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from inspect import getsource
from io import StringIO
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
PLACES = ("dataset_kwargs", "metadata")  # where the rows are: the prompts of a run have a digest of their own
Items = dict[str, Any]  # "METRIC,FILTER" → what the metric makes of one answer


@dataclass(frozen=True)
class HeldTask:
    """One task. `name` is lm-eval's."""

    name: str
    task: Any

    @cached_property
    def config(self) -> str:
        """The meaning of its configuration and of lm-eval's version, in 12 hex digits."""
        meaning = {key: value for key, value in self.task.dump_config().items() if key not in PLACES}
        text = json.dumps([version("lm_eval"), meaning], sort_keys=True, default=described)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def docs(self) -> list[Any]:
        """What is asked, in lm-eval's order."""
        return list(self.task.eval_docs)

    def instances(self, limit: int | None) -> list[Instance]:
        """The first `limit` requests as lm-eval makes them with its own seeds: worked examples and all."""
        self.task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        with quiet(), seeded():
            self.task.build_all_requests(limit=limit)
        return list(self.task.instances)

    def items(self, doc_id: int, text: str) -> Items:
        """What each metric makes of an answer behind each filter. Whatever lm-eval's code raises."""
        doc = self.docs[doc_id]
        instance = Instance("generate_until", doc, ("", {}), 0, (self.name, doc_id, 1), resps=[text])
        for each in self.task._filters:
            each.apply([instance])
        return {
            f"{metric},{key}": item
            for key, filtered in instance.filtered_resps.items()
            for metric, item in self.task.process_results(doc, [filtered]).items()
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The metrics with their filters, in lm-eval's order, but first one that is better when it is higher."""
        try:
            names = list(self.items(0, ""))
        except Exception:  # of a metric that cannot judge an empty answer
            keys = [each.name for each in self.task._filters]
            names = [f"{metric},{key}" for key in keys for metric in self.task.aggregation()]
        better = self.task.higher_is_better()
        main = next((name for name in names if better.get(metric_of(name), True)), names[0])
        return (main, *(name for name in names if name != main))

    def aggregation(self, name: str) -> Callable[[list[Any]], float]:
        """How lm-eval makes one number of the items of all answers: the mean where the task does not say."""
        found: Callable[[list[Any]], float] = self.task.aggregation().get(metric_of(name), mean)
        return found


def metric_of(name: str) -> str:
    return name.rpartition(",")[0]


def described(value: Any) -> str:
    """A function by its source, anything else by what it shows; no addresses, which change from run to run."""
    try:
        return getsource(value)
    except (TypeError, OSError):
        return ADDRESS.sub("", repr(value))


@contextmanager
def seeded() -> Iterator[None]:
    """lm-eval's own seeds, for tasks that draw while they are loaded; afterwards the generators go on as before."""
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
    """No progress bars and no remarks of lm-eval: what is wrong is an exception."""
    log = logging.getLogger("lm_eval")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        log.setLevel(level)


HELD: dict[tuple[str, str], HeldTask] = {}  # by name and config: what this process has loaded


def hold(tasks: Mapping[str, Any]) -> list[HeldTask]:
    """Keep loaded tasks for the scorers and examples of this process."""
    held = [HeldTask(name, task) for name, task in tasks.items()]
    HELD.update({(each.name, each.config): each for each in held})
    return held
