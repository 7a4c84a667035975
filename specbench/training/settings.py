"""The settings of `specbench train`, from the command line and a file. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.core import dotted
from specbench.core.errors import ConfigError, nearest
from specbench.specs import yaml_files
from specbench.specs.components import AnySpec, build
from specbench.training.spec import EXAMPLES, KINDS


def read_settings(
    model: type[AnySpec], kind: str, config: Path | None, options: Mapping[str, Any], overrides: Sequence[str]
) -> AnySpec:  # fmt: skip
    """Returns the validated settings: the command line overrides the YAML file, which overrides the defaults.

    `options`: values by dotted key, None for options that are not given. `overrides`: key=value. Raises ConfigError
    that names the file or the option, the key and the value.
    """
    file = yaml_files.read(config) if config is not None else {}
    if file.get("kind", kind) != kind:
        raise ConfigError(
            f"{config}: kind = {file['kind']!r}, but the command is `train {kind}`: {nearest(kind, KINDS)}"
        )
    data: dict[str, Any] = {**file, "kind": kind}
    for path, value in options.items():
        if value is not None:
            data = dotted.put(data, path, value)
    texts = {}
    for pair in overrides:
        path, equals, text = pair.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set '{pair}': write it as key=value, such as --set {EXAMPLES[kind]}")
        texts[path.strip()] = pair
        data = dotted.put(data, path.strip(), yaml_files.parse(text, f"--set {pair}"))
    if not data.get("output"):
        raise ConfigError("--output: is missing: give a folder for the trained drafter")
    try:
        return build(model, {"data": {}, **data})
    except ConfigError as error:
        raise ConfigError(f"{origin_of(str(error), config, file, texts)}{error}") from error


def origin_of(problem: str, config: Path | None, file: Mapping[str, Any], overrides: Mapping[str, str]) -> str:
    """Returns a prefix for a problem that says where its key was given: "--set …: ", "FILE: " or ""."""
    key = problem.split(" = ")[0].split(": ")[0]
    for path, pair in overrides.items():
        if key == path or key.startswith(f"{path}.") or key == path.split(".")[0]:
            return f"--set {pair}: "
    return f"{config}: " if key.split(".")[0] in file else ""
