"""specs.json in the folder of a run: the tasks and methods that its rows are of."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import bounded
from specbench.errors import ConfigError
from specbench.files import write_atomically
from specbench.specs import MethodSpec, RunSpec, TaskSpec, build

FILE = "specs.json"
REMEDY = "repeat the command of the run, which writes it again and measures nothing that is there"


@dataclass(frozen=True)
class SpecsFile:
    """The specs of a run, in the order in which it was asked for them."""

    tasks: tuple[TaskSpec, ...]
    methods: tuple[MethodSpec, ...]


def write_specs(folder: Path, spec: RunSpec) -> None:
    """Write what the rows of this run are of. Raises ConfigError where the disk refuses."""
    content = {
        "tasks": [_without_places(task.model_dump()) for task in spec.tasks],
        "methods": [method.model_dump() for method in spec.methods],
    }
    try:
        write_atomically(folder / FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder / FILE}: cannot write it ({error.strerror or error})") from error


def _without_places(data: dict[str, Any]) -> dict[str, Any]:
    """A task, or a part of it, with the names of its samples: in which folder of this machine they are is no part of
    what was measured."""
    made: dict[str, Any] = {
        key: _without_places(value) if isinstance(value, dict) else value for key, value in data.items()
    }
    sample = made.get("sample")
    if isinstance(sample, str):
        made["sample"] = Path(sample).name
    return made


def read_specs(folder: Path) -> SpecsFile:
    """Raises ConfigError for a file that is absent or broken."""
    path = folder / FILE
    content = bounded.read_json(path, REMEDY, strict=False)  # a threshold may be infinite
    try:
        return SpecsFile(
            tuple(build(TaskSpec, task, prefix=f"{path}: ") for task in content["tasks"]),
            tuple(build(MethodSpec, method, prefix=f"{path}: ") for method in content["methods"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read ({type(error).__name__}: {error}): {REMEDY}") from error
