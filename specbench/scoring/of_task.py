"""The scorer that a task names."""

from inspect import signature

from specbench.registry import SCORERS
from specbench.scoring.contract import Scorer
from specbench.specs import TaskSpec


def make_scorer(task: TaskSpec) -> Scorer | None:
    """The scorer of a task that is merged with its subset."""
    if task.scorer is None:
        return None
    factory, options = SCORERS.get(task.scorer.type), task.scorer.options
    if "language" in signature(factory).parameters:
        options = {"language": task.language, **options}
    made: Scorer = factory(**options)
    return made
