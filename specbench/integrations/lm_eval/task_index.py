"""lm-eval's tasks found and loaded: a user's own folder first, the thousands that come with lm-eval when needed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from specbench.core.errors import ConfigError

GENERATES = "generate_until"
SHOWN = 3  # tasks in an error


class TaskIndex(TaskManager):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's index, in which what cannot be loaded or run is one line."""

    def load(self, task_list: Any) -> Any:
        """lm-eval's tasks and groups by name. Raises ConfigError naming the task and what is wrong with it."""
        asked = task_list if isinstance(task_list, list) else [task_list]
        names = [str(name.get("task", name)) if isinstance(name, dict) else str(name) for name in asked]
        try:
            loaded = super().load(task_list)
        except Exception as error:  # of a data set, a template or a task's own code
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
            raise ConfigError(
                f"lm-eval cannot load task {shown(names, reason)}: {type(error).__name__}: {reason[:300]} (for data of "
                "your own, give a YAML that includes the task's and has dataset_path: json, and its folder as include "
                "path)"
            ) from error
        for name, task in loaded["tasks"].items():
            check_generates(name, task)
        return loaded


def shown(names: Sequence[str], reason: str) -> str:
    """Of the tasks that were asked for together those that the reason names, or else the first."""
    named = [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", reason)] or names
    return ", ".join(named[:SHOWN]) + (f" or {len(named) - SHOWN} more" if len(named) > SHOWN else "")


def check_generates(name: str, task: Task) -> None:
    """Raise ConfigError for a task that asks for log-likelihoods, or for more than text."""
    check_output_type(name, task.OUTPUT_TYPE)
    if getattr(task, "MULTIMODAL", False):
        raise ConfigError(f"task {name}: asks for images or sound, and specbench gives models text: choose another")


def check_output_type(name: str, output_type: Any) -> None:
    if output_type != GENERATES:
        raise ConfigError(
            f"task {name}: output_type {output_type} asks for log-likelihoods of given texts, where nothing is "
            f"generated and no draft token is judged: choose a task with output_type {GENERATES}, such as gsm8k"
        )


def task_index(
    names: Sequence[str], include: str | Path | None = None, metadata: Mapping[str, Any] | None = None
) -> TaskIndex:
    """An index that holds all `names` (tasks, groups, tags, patterns, paths of YAML files), the folder `include` alone
    where that is enough: reading lm-eval's own takes seconds.

    Raises ConfigError for a name that is nowhere, with the nearest, and for a folder that is not there.
    """
    if include is not None and not Path(include).is_dir():
        raise ConfigError(f"lm-eval include path {include}: no such folder: give one that holds YAML files of tasks")
    for name in names:
        if is_path(name) and not Path(name).exists():
            raise ConfigError(f"lm-eval task {name}: no such file: give the path of a YAML file, or a task's name")
    folder = None if include is None else str(include)
    index = TaskIndex(include_path=folder, include_defaults=False, metadata=dict(metadata or {}))
    if any(config is None for name in names for _, config in configs(index, name)):
        check_readable(folder, names)
        index = TaskIndex(include_path=folder, metadata=dict(metadata or {}))
    for name in names:
        for leaf, config in configs(index, name):
            if config is None:
                raise unknown(leaf, index)
            if "class" not in config:
                check_output_type(leaf, config.get("output_type", GENERATES))
    return index


def is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


def configs(index: TaskIndex, name: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The tasks that a name, a pattern or a path means, with what their files say; None for one that is not there."""
    if is_path(name):
        paths = [Path(name)] if Path(name).is_file() else sorted(Path(name).glob("*.yaml"))
        for path in paths:
            yield from leaves(index, name, read(path))
        return
    matches = [name] if name in index.task_index else index.match_tasks([name])
    if not matches:
        yield name, None
    for match in matches:
        entry = index.task_index[match]
        for member in sorted(entry.tags) if entry.cfg is None else ():  # a tag
            yield from configs(index, member)
        if entry.cfg is not None:
            yield from leaves(index, match, entry.cfg)


def leaves(index: TaskIndex, name: str, config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The task of a file, or those that its group names; a group may define tasks in place, which are whole."""
    members = config.get("task") if "group" in config else None
    if not isinstance(members, list):
        yield name, config
        return
    for member in members:
        called = member if isinstance(member, str) else member.get("group", member.get("task"))
        if isinstance(member, dict) and called not in index.task_index and len(member) > 1:
            yield from leaves(index, str(called), member)
        else:
            yield from configs(index, str(called))


def check_readable(folder: str | None, names: Sequence[str]) -> None:
    """lm-eval passes over files that it cannot read: where a name is missing, the first of them is named."""
    for path in sorted(Path(folder).glob("**/*.yaml")) if folder is not None else []:
        if any(name in path.stem or name in path.read_text("utf-8", "replace") for name in names):
            read(path)


def read(path: Path) -> dict[str, Any]:
    """A task's YAML with what it includes. Raises ConfigError naming the file and the line."""
    try:
        config: dict[str, Any] = load_yaml(path, resolve_func=False)
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise ConfigError(f"{path}: lm-eval cannot read this task: {error}: correct the file") from error
    return config


def unknown(name: str, index: TaskIndex) -> ConfigError:
    close = get_close_matches(name, index.all_tasks, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(each) for each in close)}? " if close else ""
    return ConfigError(f"unknown lm-eval task '{name}': {hint}`specbench lm-eval ls tasks` lists them all")
