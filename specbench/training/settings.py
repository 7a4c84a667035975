"""The settings of a training: the command line wins over the YAML file, and the file over the defaults."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from specbench.errors import ConfigError, nearest
from specbench.specs import dotted, yaml_files
from specbench.specs.components import AnySpec, build
from specbench.training.examples import EXAMPLES
from specbench.training.ngram_spec import NgramSpec
from specbench.training.spec import Kind, TrainSpec

KINDS = (*get_args(Kind), *get_args(NgramSpec.model_fields["kind"].annotation))


def settings(kind: str, config: Path | None, options: Mapping[str, Any], overrides: Sequence[str]) -> TrainSpec:
    """The checked settings of a training in steps, as `read_settings`."""
    return read_settings(TrainSpec, kind, config, options, overrides)


def read_settings(
    model: type[AnySpec], kind: str, config: Path | None, options: Mapping[str, Any], overrides: Sequence[str]
) -> AnySpec:  # fmt: skip
    """The checked settings. `options`: by dotted key, None where an option was not given. `overrides`: key=value.

    Raises ConfigError naming the file or the option, the key and the value.
    """
    file = read(config, kind) if config is not None else {}
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
        raise ConfigError("--output: is missing: give the folder that the trained drafter is written to")
    try:
        return build(model, {"data": {}, **data})
    except ConfigError as error:
        raise ConfigError(f"{place(str(error), config, file, texts)}{error}") from error


def read(config: Path, kind: str) -> dict[str, Any]:
    """The keys of a file. Raises ConfigError for one that cannot be read, or that is of another kind."""
    data = yaml_files.read(config)
    if data.get("kind", kind) != kind:
        raise ConfigError(
            f"{config}: kind = {data['kind']!r}, and the command is `train {kind}`: {nearest(kind, KINDS)}"
        )
    return data


def place(problem: str, config: Path | None, file: Mapping[str, Any], overrides: Mapping[str, str]) -> str:
    """Where the key at the beginning of a problem was given: `--set`, the file, or neither."""
    key = problem.split(" = ")[0].split(": ")[0]
    for path, pair in overrides.items():
        if key == path or key.startswith(f"{path}.") or key == path.split(".")[0]:
            return f"--set {pair}: "
    return f"{config}: " if key.split(".")[0] in file else ""
