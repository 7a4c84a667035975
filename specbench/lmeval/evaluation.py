"""lm-eval's `simple_evaluate` with specbench's columns in its results."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_eval import evaluator
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.evaluator import simple_evaluate as evaluate_with_lm_eval
from lm_eval.utils import simple_parse_args_string

from specbench.lmeval.gen_kwargs import generation_spec
from specbench.lmeval.model import SpecbenchLM
from specbench.lmeval.task_index import task_index

OF_THE_MODEL = ("batch_size", "max_batch_size", "device")


def simple_evaluate(
    model: str | SpecbenchLM = "specbench", model_args: str | Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Any] | None:
    """As lm_eval.simple_evaluate, for a SpecbenchLM or the `model_args` of one; `options` are lm-eval's own.

    Where the arguments have no `seed`, the model draws with lm-eval's seed of torch. The results hold acceptance,
    tokens/s and, with `baseline=true`, the speed-up beside the scores of each task.
    Raises ConfigError in one line for what a user can get wrong.
    """
    arguments = simple_parse_args_string(model_args) if isinstance(model_args, str) else dict(model_args or {})
    if options.get("task_manager") is None:
        names = [task for task in options.get("tasks") or () if isinstance(task, str)]
        options["task_manager"] = task_index(names, metadata=arguments | (options.get("metadata") or {}))
    asked = options.get("gen_kwargs") or {}  # what is wrong with it is said before the models are loaded
    generation_spec(simple_parse_args_string(asked) if isinstance(asked, str) else asked)
    seed = options.get("torch_random_seed", DEFAULT_OTHER_SEED)
    of_the_model = (
        {key: options.get(key) for key in OF_THE_MODEL} | ({} if seed is None else {"seed": seed}) | arguments
    )
    lm = SpecbenchLM(**of_the_model) if isinstance(model, str) else model
    lm.answers = []
    with quiet_git():
        results: dict[str, Any] | None = evaluate_with_lm_eval(model=lm, model_args=model_args, **options)
    if results is not None:
        results["config"]["model"] = "specbench"
        lm.add_columns(results)
    return results


@contextmanager
def quiet_git() -> Iterator[None]:
    """Outside a repository lm-eval's question for the commit has git print "fatal": there it is not asked."""
    theirs = evaluator.get_git_commit_hash
    folder = Path.cwd()
    if not any((place / ".git").exists() for place in (folder, *folder.parents)) and "GIT_DIR" not in os.environ:
        evaluator.get_git_commit_hash = lambda: None
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = theirs
