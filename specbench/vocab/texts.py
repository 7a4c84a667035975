"""The texts that two vocabularies are compared on: the prompts of a task."""

from collections.abc import Sequence

from rich.console import Console

from specbench.catalogue import load_task
from specbench.data.examples import load_examples
from specbench.errors import ConfigError
from specbench.running.subsets import with_files

NUM_PROMPTS = 50  # as in arXiv:2502.05202, table 10
DEFAULT_TASK = "mgsm"


def task_prompts(
    task: str, subsets: Sequence[str] | None, *, data: str | None, use_sample: bool, limit: int | None,
    console: Console,
) -> list[str]:  # fmt: skip
    """The first `limit` prompts of every subset; without a limit 50 in all, spread evenly over the subsets. Where none
    is named, of a user's own files those that have any; the others are named on the console.

    Raises ConfigError for an unknown task or subset and for anything wrong with the data.
    """
    spec = load_task(task)
    if subsets is None:
        subsets = with_files(spec, data, console) or spec.subset_names
    names = list(dict.fromkeys(subsets))
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
