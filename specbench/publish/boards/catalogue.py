"""Finds and loads boards: those of `leaderboards/`, and a user's own files."""

import os
from pathlib import Path

from specbench.core.errors import ConfigError, nearest
from specbench.core.resources import builtin_dir
from specbench.publish.boards.cells import cells_of
from specbench.publish.boards.spec import BoardSpec
from specbench.publish.measurement import Asked
from specbench.specs import yaml_files
from specbench.specs.catalogue import load_method, load_tasks
from specbench.specs.components import build

KIND = "leaderboards"


def board_names() -> list[str]:
    return sorted(path.stem for path in builtin_dir(KIND).glob("*.yaml"))


def board_path(name_or_path: str) -> Path:
    """The file of a built-in board, or the path itself when it is one. Raises ConfigError for an unknown name."""
    if name_or_path.endswith((".yaml", ".yml")) or os.sep in name_or_path or "/" in name_or_path:
        return Path(name_or_path)
    if name_or_path not in board_names():
        hint = f"{nearest(name_or_path, board_names())}, or the path of a .yaml file"
        raise ConfigError(f"unknown board '{name_or_path}': {hint}")
    return builtin_dir(KIND) / f"{name_or_path}.yaml"


def read_board(name_or_path: str) -> BoardSpec:
    """A board by its name or by the path of a YAML file, as the file says it. Raises ConfigError naming the file, the
    key and what is wrong."""
    path = board_path(name_or_path)
    board = build(BoardSpec, yaml_files.read(path), f"{path}: ")
    if path.stem != board.name:
        raise ConfigError(f"{path}: name = '{board.name}': must be the file's own name, '{path.stem}'")
    return board


def load_board(name_or_path: str) -> BoardSpec:
    """A board all of whose runs can be asked for. Raises ConfigError too for unknown tasks, subsets and methods."""
    path, board = board_path(name_or_path), read_board(name_or_path)
    for key, run in board.runs.items():
        try:
            known = [name for task in load_tasks(run.task) for name in task.subset_names]
            subsets = {*(run.subsets or ())}.union(*(pair.subsets.get(key, ()) for pair in board.pairs.values()))
            for subset in sorted(subsets - set(known)):
                raise ConfigError(f"task '{run.task}' has no subset '{subset}': {nearest(subset, known)}")
            for method in run.methods:
                load_method(method)
        except ConfigError as error:
            raise ConfigError(f"{path}: runs.{key}: {error}") from error
    for key, pair in board.pairs.items():
        for method in filter(None, pair.methods.values()):
            try:
                load_method(method)
            except ConfigError as error:
                raise ConfigError(f"{path}: pairs.{key}.methods: {error}") from error
        if not cells_of(board, key, Asked()):
            raise ConfigError(f"{path}: pairs.{key}.methods: all are null, so nothing is measured: leave the pair out")
    return board
