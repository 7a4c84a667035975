"""The texts that two vocabularies are compared on: the prompts of a task."""

from collections.abc import Sequence

from specbench.catalogue import load_task
from specbench.data.examples import load_examples
from specbench.errors import ConfigError

NUM_PROMPTS = 50  # as in arXiv:2502.05202, table 10
DEFAULT_TASK = "mgsm"


def task_prompts(
    task: str, subsets: Sequence[str] | None, *, data: str | None, use_sample: bool, limit: int | None
) -> list[str]:
    """The first `limit` prompts of every subset; without a limit 50 in all, spread evenly over the subsets.

    Raises ConfigError for an unknown task or subset and for anything wrong with the data.
    """
    spec = load_task(task)
    names = list(dict.fromkeys(spec.subset_names if subsets is None else subsets))
    if not names:
        raise ConfigError("--subset is empty: name at least one, or leave the option out")
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit}: must be 1 or more")
    each = -(-NUM_PROMPTS // len(names)) if limit is None else limit
    loaded = [
        load_examples(spec, name, data=data, use_sample=use_sample, limit=each, num_subsets=len(names)).examples
        for name in names
    ]
    in_turn = [examples[row].prompt for row in range(each) for examples in loaded if row < len(examples)]
    return in_turn[: NUM_PROMPTS if limit is None else None]
