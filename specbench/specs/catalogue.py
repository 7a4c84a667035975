"""Finds and loads tasks and methods: built-in ones, those of plug-ins, and the user's YAML files."""

import os
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import TASK_SOURCES
from specbench.specs import yaml_files
from specbench.specs.components import build
from specbench.specs.method import MethodSpec, is_file_entry
from specbench.specs.task import TaskSpec


def task_names() -> list[str]:
    return sorted(_files("tasks"))


def builtin_task_names() -> list[str]:
    return sorted(path.stem for path in builtin_dir("tasks").glob("*.yaml"))


def method_names() -> list[str]:
    return sorted(_files("methods"))


def load_task(name_or_path: str) -> TaskSpec:
    """Returns a task by name or by the path of its YAML file. Raises ConfigError with the file and the problem."""
    path = _find("tasks", name_or_path)
    spec = load_file(path)
    if not isinstance(spec, TaskSpec):
        raise ConfigError(f"{path}: holds a method, not a task: give it with --method")
    _check_name(spec, path, name_or_path)
    return spec


def load_tasks(name_or_path: str, lm_eval_include: Path | None = None) -> list[TaskSpec]:
    """Returns the task of a name or path; for `lm_eval:NAME`, lm-eval's task or all tasks of a group."""
    if name_or_path.startswith("lm_eval:"):
        loaded: list[TaskSpec] = TASK_SOURCES.get("lm_eval")(name_or_path, lm_eval_include)
        return loaded
    return [load_task(name_or_path)]


def load_method(name_or_path: str) -> MethodSpec:
    """Returns a method by name or by the path of its YAML file. Raises ConfigError with the file and the problem."""
    path = _find("methods", name_or_path)
    spec = load_file(path)
    if not isinstance(spec, MethodSpec):
        raise ConfigError(f"{path}: holds a task, not a method: give it with --task")
    _check_name(spec, path, name_or_path)
    return spec


def method_keys(name: str) -> dict[str, Any]:
    """Returns the unchecked keys of a known method's file. Checking them would import torch, which takes seconds."""
    return yaml_files.read(_find("methods", name))


def load_file(path: str | Path) -> TaskSpec | MethodSpec:
    """Returns the task or method in a YAML file. Its keys decide which of the two it is."""
    path = Path(path)
    data = yaml_files.read(path)
    prefix = f"{path}: "
    if {"verification", "drafter", "decoder"} & data.keys():
        return build(MethodSpec, _with_code(data, path.resolve().parent), prefix)
    if "prompt" not in data and "generation" not in data:
        if {"format", "rows"} == data.keys():
            raise ConfigError(f"{prefix}this is a leaderboard file: `specbench leaderboard validate` checks it")
        raise ConfigError(f"{prefix}neither a task (key `prompt`) nor a method (key `verification`): add the key")
    return build(TaskSpec, _with_samples(data, path.resolve().parent), prefix)


def _with_samples(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the keys of a task or subset. Sample paths, which are relative to `folder`, become absolute."""
    made = dict(data)
    if isinstance(data.get("sample"), str):
        made["sample"] = str(folder / data["sample"])
    if isinstance(data.get("fewshot"), dict):
        made["fewshot"] = _with_samples(data["fewshot"], folder)
    if isinstance(data.get("subsets"), dict):
        made["subsets"] = {
            name: _with_samples(over, folder) if isinstance(over, dict) else over
            for name, over in data["subsets"].items()
        }
    return made


def _with_code(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the keys of a method. The path of an external decoder, relative to `folder`, becomes absolute."""
    decoder = data.get("decoder")
    entry = decoder.get("entry") if isinstance(decoder, dict) else None
    if not isinstance(entry, str) or not is_file_entry(entry):
        return data
    return {**data, "decoder": {**data["decoder"], "entry": str(folder / entry)}}


def _find(kind: str, name_or_path: str) -> Path:
    """Returns the file of a built-in or plug-in name, or a given path."""
    if is_path(name_or_path):
        return Path(name_or_path)
    files = _files(kind)
    if name_or_path not in files:
        raise unknown_name(kind.removesuffix("s"), name_or_path, files)
    path, *others = files[name_or_path]
    if others:
        raise ConfigError(f"'{name_or_path}' is both {path} and {others[0]}: give the path of one of them")
    return path


def is_path(name_or_path: str) -> bool:
    """Returns whether a user's word is the path of a YAML file, not a name."""
    return name_or_path.endswith((".yaml", ".yml")) or os.sep in name_or_path or "/" in name_or_path


def unknown_name(kind: str, name: str, known: Iterable[str], listed: str = "", alike: str | None = None) -> ConfigError:
    """Returns the error for an unknown name. It says so if there is a file or folder with that name. `alike`: a text
    whose nearest known name is proposed, by default the name."""
    if os.path.exists(name):
        found = "a folder" if os.path.isdir(name) else "a file, but not a .yaml file"
        return ConfigError(f"'{name}': this is {found}: give the name of a {kind}, or the path of its .yaml file")
    return ConfigError(f"unknown {kind} '{name}': {nearest(alike or name, known, listed)}, or the path of a .yaml file")


def _check_name(spec: TaskSpec | MethodSpec, path: Path, name_or_path: str) -> None:
    if not is_path(name_or_path) and spec.name != name_or_path:
        raise ConfigError(f"{path}: name = {spec.name!r}: must be the name of the file, '{name_or_path}'")


def namesake(kind: str, name_or_path: str) -> str | None:
    """Returns a warning if a file's task or method has the name of a known one, else None.

    `kind` is "tasks" or "methods".
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return None
    spec = yaml_files.read(path)
    known = [file for file in _files(kind).get(str(spec.get("name")), []) if file.resolve() != path.resolve()]
    if not known:
        return None
    label = f"{spec['name']}@{spec.get('version')}"
    other = f"{known[0].parent.name}/{known[0].name}"
    return f"{path}: '{spec['name']}' is also the name of {other}: results call both {label}"


def _files(kind: str) -> dict[str, list[Path]]:
    """Returns the files by name, from the built-in folder and the folders of plug-ins."""
    found: dict[str, list[Path]] = {}
    for folder in (builtin_dir(kind), *_plugin_folders(kind)):
        for path in _yaml_files(folder):
            found.setdefault(path.stem, []).append(path)
    return found


@cache
def _yaml_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


@cache
def _plugin_folders(kind: str) -> tuple[Path, ...]:
    return tuple(_plugin_folder(point) for point in entry_points(group=f"specbench.{kind}"))


def _plugin_folder(point: Any) -> Path:
    place = f"plug-in '{point.name}' ({point.value})"
    try:
        loaded = point.load()
        folder = Path(loaded.__path__[0] if hasattr(loaded, "__path__") else loaded)
    except Exception as error:
        raise ConfigError(f"{place} failed to load: {error}: repair or uninstall it") from error
    if not folder.is_dir():
        raise ConfigError(f"{place}: {folder} is not a folder: the entry point must name a folder of YAML files")
    return folder
