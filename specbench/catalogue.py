"""Finds and loads tasks and methods: the built-in ones, those of plug-ins, and a user's own files."""

import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, nearest
from specbench.resources import builtin_dir
from specbench.specs import MethodSpec, TaskSpec, build, yaml_files
from specbench.specs.decoder import is_file_entry
from specbench.specs.overrides import with_overrides as with_overrides


def task_names() -> list[str]:
    return sorted(_files("tasks"))


def method_names() -> list[str]:
    return sorted(_files("methods"))


def load_task(name_or_path: str) -> TaskSpec:
    """A task by its name or by the path of a YAML file. Raises ConfigError naming the file and what is wrong."""
    path = _find("tasks", name_or_path)
    spec = load_file(path)
    if not isinstance(spec, TaskSpec):
        raise ConfigError(f"{path}: holds a method, not a task: give it with --method")
    return spec


def load_method(name_or_path: str) -> MethodSpec:
    """A method by its name or by the path of a YAML file. Raises ConfigError naming the file and what is wrong."""
    path = _find("methods", name_or_path)
    spec = load_file(path)
    if not isinstance(spec, MethodSpec):
        raise ConfigError(f"{path}: holds a task, not a method: give it with --task")
    return spec


def load_file(path: str | Path) -> TaskSpec | MethodSpec:
    """The task or the method in a YAML file, told apart by its keys."""
    path = Path(path)
    data = yaml_files.read(path)
    prefix = f"{path}: "
    if {"verification", "drafter", "decoder"} & data.keys():
        return build(MethodSpec, _with_code(data, path.resolve().parent), prefix)
    if "prompt" not in data and "generation" not in data:
        raise ConfigError(f"{prefix}no task (key `prompt`) and no method (key `verification`): add it")
    if isinstance(data.get("sample"), str):
        data["sample"] = str(path.resolve().parent / data["sample"])
    return build(TaskSpec, data, prefix)


def _with_code(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The method with the file of an external decoder's code, if it is one, made absolute: it stands in `folder`."""
    decoder = data.get("decoder")
    entry = decoder.get("entry") if isinstance(decoder, dict) else None
    if not isinstance(entry, str) or not is_file_entry(entry):
        return data
    return {**data, "decoder": {**data["decoder"], "entry": str(folder / entry)}}


def _find(kind: str, name_or_path: str) -> Path:
    """The file of a built-in or plug-in name, or the path itself when it is one."""
    if name_or_path.endswith((".yaml", ".yml")) or os.sep in name_or_path or "/" in name_or_path:
        return Path(name_or_path)
    files = _files(kind)
    if name_or_path not in files:
        hint = f"{nearest(name_or_path, files)}, or the path of a .yaml file"
        raise ConfigError(f"unknown {kind.removesuffix('s')} '{name_or_path}': {hint}")
    path, *others = files[name_or_path]
    if others:
        raise ConfigError(f"'{name_or_path}' is both {path} and {others[0]}: give the path of one of them")
    named = yaml_files.read(path).get("name")
    if named != name_or_path:
        raise ConfigError(f"{path}: name = {named!r}: must be the file's own name, '{name_or_path}'")
    return path


def _files(kind: str) -> dict[str, list[Path]]:
    """The files of every name, in the built-in folder and in the folders of plug-ins."""
    found: dict[str, list[Path]] = {}
    for folder in _folders(kind):
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
            found.setdefault(path.stem, []).append(path)
    return found


@cache
def _plugin_folders(kind: str) -> tuple[Path, ...]:
    return tuple(_plugin_folder(point) for point in entry_points(group=f"specbench.{kind}"))


def _folders(kind: str) -> Iterator[Path]:
    yield builtin_dir(kind)
    yield from _plugin_folders(kind)


def _plugin_folder(point: Any) -> Path:
    place = f"plug-in '{point.name}' ({point.value})"
    try:
        loaded = point.load()
        folder = Path(loaded.__path__[0] if hasattr(loaded, "__path__") else loaded)
    except Exception as error:
        raise ConfigError(f"{place} failed to load: {error}: repair or uninstall it") from error
    if not folder.is_dir():
        raise ConfigError(f"{place}: {folder} is not a folder: the entry point must load to a folder of YAML files")
    return folder
