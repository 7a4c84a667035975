"""Finds the help of a method or a task by its name or path."""

import os

from specbench.cli.help.method import MethodHelp, method_help
from specbench.cli.help.task import TaskHelp, task_help
from specbench.core.errors import ConfigError, nearest
from specbench.specs.catalogue import load_file, load_method, load_task, method_names, task_names
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec


def find_help(name: str) -> MethodHelp | TaskHelp:
    """Returns the help of a method or else of a task. Raises ConfigError with the nearest name."""
    spec = _load(name)
    return method_help(spec, name) if isinstance(spec, MethodSpec) else task_help(spec, name)


def _load(name: str) -> MethodSpec | TaskSpec:
    if name.endswith((".yaml", ".yml")) or os.sep in name or "/" in name:
        return load_file(name)
    methods, tasks = method_names(), task_names()
    if name in methods:
        return load_method(name)
    if name in tasks:
        return load_task(name)
    hint = f"{nearest(name, [*methods, *tasks])}, or the path of a .yaml file; `specbench list` shows all"
    raise ConfigError(f"unknown method or task '{name}': {hint}")
