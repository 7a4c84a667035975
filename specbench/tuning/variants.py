"""A method with one key changed, and the values a sweep gives to it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.errors import ConfigError, nearest
from specbench.specs import MethodSpec, build, dotted, yaml_files

THRESHOLD, LENGTH = "verification.threshold", "num_draft_tokens"
# Not what a method does, or what makes it another method with other options.
FIXED = ("name", "version", "title", "paper", "calibration", "decodes_with", "drafter.type", "decoder.type")


@dataclass(frozen=True)
class Variant:
    """One value of one path; all other keys are as in the method's file. `name` names its folder too."""

    path: str
    value: Any
    method: MethodSpec

    @property
    def name(self) -> str:
        return re.sub(r"[^\w.=+-]+", "_", f"{self.path}={shown(self.value)}")


def with_value(method: MethodSpec, path: str, value: Any, place: str = "") -> MethodSpec:
    """The method with another value at a dotted path. Raises ConfigError: `place`, and what is wrong."""
    data = dotted.put(method.model_dump(exclude={"sweep"}), path, value)
    return build(MethodSpec, data, prefix=f"{place}: " if place else "")


def at(method: MethodSpec, threshold: float, num_draft_tokens: int, name: str | None = None) -> MethodSpec:
    """A fuzzy method at another threshold and draft length."""
    changed = with_value(with_value(method, THRESHOLD, threshold), LENGTH, num_draft_tokens)
    return changed.model_copy(update={"name": name}) if name else changed


def swept_values(method: MethodSpec, path: str | None, values: str | None) -> dict[str, list[Any]]:
    """Path → values: those of the method's own `sweep`, or one path, with its own values or those of the command line.

    Raises ConfigError for a path that the method lacks, and where nothing is given to sweep.
    """
    if path is None:
        if values is not None:
            raise ConfigError(f"--values {values}: needs --path: which key they are for, such as --path {THRESHOLD}")
        if not method.sweep:
            raise ConfigError(f"method '{method.name}' has no `sweep`: give --path KEY --values A,B,C")
        return {key: list(listed) for key, listed in method.sweep.items()}
    leaves = dotted.leaves(method.model_dump(exclude={"sweep"}))
    known = [leaf for leaf in leaves if not leaf.startswith(FIXED) and not leaf.endswith(".drafter.type")]
    if path not in known:
        raise ConfigError(f"--path {path}: method '{method.name}' has no such key: {nearest(path, known)}")
    if values is None:
        if path not in method.sweep:
            raise ConfigError(f"--path {path}: method '{method.name}' sweeps no values of it: give --values A,B,C")
        return {path: list(method.sweep[path])}
    given = yaml_files.parse(f"[{values}]", f"--values {values}")
    if not given:
        raise ConfigError("--values: is empty: give values separated by commas")
    return {path: given}


def variants(method: MethodSpec, swept: Mapping[str, Sequence[Any]]) -> list[Variant]:
    """One path at a time, every value with all other keys as in the file: as many runs as there are values, where
    crossing the paths would ask for their product."""
    return [
        Variant(path, value, with_value(method, path, value, place=f"--path {path}, value {shown(value)}"))
        for path, values in swept.items() for value in values
    ]  # fmt: skip


def shown(value: Any) -> str:
    """A value as it stands in a table or in a name."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
