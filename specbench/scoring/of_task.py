"""The scorer that a task names."""

from specbench.registry import SCORERS
from specbench.scoring.contract import Scorer
from specbench.specs import TaskSpec


def make_scorer(task: TaskSpec) -> Scorer | None:
    """The scorer of a task that is merged with its subset."""
    if task.scorer is None:
        return None
    made: Scorer = SCORERS.get(task.scorer.type)(**task.scorer.options)
    return made
