"""lm-eval's `simple_evaluate` and its command line, with specbench's columns in the results."""

import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lm_eval
import lm_eval.tasks
from lm_eval import evaluator
from lm_eval._cli import HarnessCLI
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.evaluator import simple_evaluate as evaluate_with_lm_eval
from lm_eval.utils import setup_logging, simple_parse_args_string

from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.integrations.lm_eval.model import SpecbenchLM
from specbench.integrations.lm_eval.tasks import generation_spec, task_index

MODEL_OPTIONS = ("batch_size", "max_batch_size", "device")


def simple_evaluate(
    model: str | SpecbenchLM = "specbench", model_args: str | Mapping[str, object] | None = None, **options: Any
) -> Any:
    """Runs lm_eval.simple_evaluate for a SpecbenchLM, or for its `model_args`. `options`: lm-eval's options.

    Without `seed` in the arguments, the model uses lm-eval's seed for torch. Returns lm-eval's results, a mapping or
    None. Besides the scores of each task, they have acceptance, tokens/s and, with `baseline=true`, the speed-up.
    Raises ConfigError for invalid arguments.
    """
    arguments = simple_parse_args_string(model_args) if isinstance(model_args, str) else dict(model_args or {})
    if options.get("task_manager") is None:
        names = [task for task in options.get("tasks") or () if isinstance(task, str)]
        options["task_manager"] = task_index(names, metadata=arguments | (options.get("metadata") or {}))
    gen_kwargs = options.get("gen_kwargs") or {}  # raises before the models are loaded
    generation_spec(simple_parse_args_string(gen_kwargs) if isinstance(gen_kwargs, str) else gen_kwargs)
    seed = options.get("torch_random_seed", DEFAULT_OTHER_SEED)
    if isinstance(model, str):
        defaults = {key: options.get(key) for key in MODEL_OPTIONS} | ({} if seed is None else {"seed": seed})
        lm = SpecbenchLM(**(defaults | arguments))
    else:
        lm = model
    lm.answers = []
    with quiet_git():
        results: Any = evaluate_with_lm_eval(model=lm, model_args=model_args, **options)
    if results is not None:
        results["config"]["model"] = "specbench"
        lm.add_columns(results)
    return results


def quiet_git() -> AbstractContextManager[Any]:
    """Outside a repository, keeps lm-eval from asking git for the commit, which would print "fatal"."""
    folder = Path.cwd()
    if any((place / ".git").exists() for place in (folder, *folder.parents)) or "GIT_DIR" in os.environ:
        return nullcontext()
    return patch.object(evaluator, "get_git_commit_hash", lambda: None)


COMMANDS = ("run", "ls", "validate")


def main(line: Sequence[str]) -> None:
    """Runs an lm-eval command line, whose command is `run` by default. Its table and JSON have specbench's columns.

    Raises ConfigError for invalid arguments.
    """
    # 1. lm-eval's parser, whose error becomes one line; --help ends the program.
    setup_logging(logging.WARNING)
    words = ["specbench lm-eval", *([] if line[:1] and line[0] in COMMANDS else ["run"]), *line]
    printed = io.StringIO()
    try:
        with patch.object(sys, "argv", words), redirect_stderr(printed):
            arguments: Any = HarnessCLI().parse_args()
    except SystemExit as stop:
        if not stop.code:
            raise
        message = printed.getvalue().strip().splitlines()[-1].partition("error: ")[2]
        raise ConfigError(f"lm-eval: {message}: `specbench lm-eval run --help` shows its options") from stop
    cli = HarnessCLI()
    if arguments.command != "run":
        cli.execute(arguments)
        return
    if arguments.model not in (None, "specbench"):
        raise ConfigError(f"--model {arguments.model}: `specbench lm-eval` always uses the model specbench: remove it")
    started = False

    def find(include_path: str | None = None, metadata: Any = None) -> Any:
        return task_index(arguments.tasks, include_path, metadata)

    def evaluate(**options: Any) -> Any:
        nonlocal started
        started = True
        return simple_evaluate(**options)

    try:
        # 2. Arguments from lm-eval's --config file, and the defaults of specbench's model.
        given = EvaluatorConfig.load_yaml_config(arguments.config) if arguments.config else {}
        tasks = arguments.tasks or given.get("tasks") or ()
        names = [tasks] if isinstance(tasks, str) else tasks
        arguments.tasks = [each for name in names for each in name.split(",")]
        arguments.model = "specbench"
        arguments.device = arguments.device or given.get("device") or "auto"
        model_args = arguments.model_args or given.get("model_args") or {}
        if isinstance(model_args, dict):
            model_args = {"pretrained": EMBEDDED + "target", **model_args}
        arguments.model_args = model_args
        # 3. lm-eval's run, with our functions in place of those that evaluate and find tasks.
        with patch.object(lm_eval, "simple_evaluate", evaluate), patch.object(lm_eval.tasks, "TaskManager", find):
            cli.execute(arguments)
    except (ValueError, TypeError, FileNotFoundError) as error:
        if started and "unsafe" not in str(error):  # a defect, not a mistake in the command line
            raise
        raise ConfigError(f"lm-eval: {error}") from error
