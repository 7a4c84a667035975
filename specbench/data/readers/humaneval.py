"""HumanEval: a problem's `task_id` is its id."""

from collections.abc import Callable

from specbench.data.local import Row
from specbench.registry import READERS


@READERS.register("humaneval")
def humaneval() -> Callable[[Row], Row]:
    """Rows of openai/openai_humaneval and of HumanEval.jsonl, with the column `id` that records are told apart by."""
    return lambda row: {"id": row["task_id"], **row} if "task_id" in row else row
