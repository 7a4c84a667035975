"""lm-eval's own command line with specbench as its model."""

import io
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import lm_eval
import lm_eval.tasks
from lm_eval._cli import HarnessCLI
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.utils import setup_logging

from specbench.errors import ConfigError
from specbench.lmeval.evaluation import simple_evaluate
from specbench.lmeval.task_index import task_index
from specbench.resources import EMBEDDED

COMMANDS = ("run", "ls", "validate")


def main(line: Sequence[str]) -> None:
    """Run a command line of lm-eval: `run` when it names no command. Its table and JSON hold specbench's columns.

    Raises ConfigError in one line for what a user can get wrong.
    """
    setup_logging(logging.WARNING)
    cli, arguments = HarnessCLI(), parse([*([] if line[:1] and line[0] in COMMANDS else ["run"]), *line])
    if arguments.command != "run":
        cli.execute(arguments)
        return
    if arguments.model not in (None, "specbench"):
        raise ConfigError(f"--model {arguments.model}: the model of `specbench lm-eval` is specbench: leave it out")
    started: list[bool] = []
    try:
        complete(arguments)
        with ours(arguments, started):
            cli.execute(arguments)
    except (ValueError, TypeError, FileNotFoundError) as error:
        if started and "unsafe" not in str(error):  # not of the command line: a defect
            raise
        raise ConfigError(f"lm-eval: {error}") from error


def parse(line: list[str]) -> Any:
    """The arguments as lm-eval parses them. Raises ConfigError with its message, and leaves for --help."""
    before, said = sys.argv, io.StringIO()
    sys.argv = ["specbench lm-eval", *line]
    try:
        with redirect_stderr(said):
            return HarnessCLI().parse_args()
    except SystemExit as stop:
        if not stop.code:
            raise
        message = said.getvalue().strip().splitlines()[-1].partition("error: ")[2]
        raise ConfigError(f"lm-eval: {message}: `specbench lm-eval run --help` shows its options") from stop
    finally:
        sys.argv = before


def complete(arguments: Any) -> None:
    """Fill in what lm-eval would: from its --config file, and where that does not say, for our model."""
    given = EvaluatorConfig.load_yaml_config(arguments.config) if arguments.config else {}
    tasks = arguments.tasks or given.get("tasks") or ()
    arguments.tasks = (
        tasks.split(",") if isinstance(tasks, str) else [each for name in tasks for each in name.split(",")]
    )
    arguments.model, arguments.device = "specbench", arguments.device or given.get("device") or "auto"
    model_args = arguments.model_args or given.get("model_args") or {}
    if isinstance(model_args, dict):
        model_args = {"pretrained": EMBEDDED + "target", **model_args}
    arguments.model_args = model_args


@contextmanager
def ours(arguments: Any, started: list[bool]) -> Iterator[None]:
    """lm-eval evaluates and finds tasks by functions that it looks up when it needs them: for this while, by ours."""

    def find(include_path: str | None = None, metadata: Any = None) -> Any:
        return task_index(arguments.tasks, include_path, metadata)

    def evaluate(**options: Any) -> Any:
        started.append(True)
        return simple_evaluate(**options)

    theirs = lm_eval.simple_evaluate, lm_eval.tasks.TaskManager
    lm_eval.simple_evaluate, lm_eval.tasks.TaskManager = evaluate, find
    try:
        yield
    finally:
        lm_eval.simple_evaluate, lm_eval.tasks.TaskManager = theirs
