"""The settings of a training: the command line wins over the YAML file, and the file over the defaults."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, get_args, get_origin

from specbench.core.errors import ConfigError, nearest
from specbench.specs import components as dotted
from specbench.specs import yaml_files
from specbench.specs.components import AnySpec, build
from specbench.training.spec import BLOCKS, DEFAULTS, Described, Kind, NgramSpec, TrainSpec

if TYPE_CHECKING:
    from specbench.cli.help.parameters import Parameter

EXAMPLES = {
    "scdf": "scdf.estimator=sampled",
    "distill": "distill.top_k=10",
    "finetune": "finetune.stage=pretrain",
    "ngram": "data.split=train",
}


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


def keys_text(kind: str) -> str:
    """One entry for each key that --set and --config take."""
    return "\n".join(["Keys of --set and --config:", *(line for key in keys(kind) for line in entry(key))])


def keys(kind: str) -> "Iterator[Parameter]":
    """The keys of a kind, those of its parts by their dotted names."""
    model: type[Described] = TrainSpec if kind in DEFAULTS else NgramSpec
    for parameter in keys_of(model, "", DEFAULTS.get(kind, {})):
        block = parameter.key.partition(".")[0]
        if block != "kind" and (block == kind or block not in BLOCKS):
            yield parameter


def keys_of(model: type[Described], place: str, defaults: Mapping[str, Any]) -> "Iterator[Parameter]":
    """The keys of a spec in order; a part that may be left out comes with its own keys behind it."""
    from specbench.cli.help.parameters import described

    parameters = described(model, place, defaults, set())
    for parameter, field in zip(parameters, model.model_fields.values(), strict=True):
        key = parameter.key.removeprefix(".")
        part = part_of(field.annotation)
        if part is None or (field.default is None and key not in BLOCKS):
            yield parameter.model_copy(update={"key": key})
        if part is not None:
            yield from keys_of(part, key, {})


def part_of(annotation: Any) -> type[Described] | None:
    """The spec that a key holds, or may hold; those of a mapping have names of the user's."""
    held = () if get_origin(annotation) is dict else (annotation, *get_args(annotation))
    return next((each for each in held if isinstance(each, type) and issubclass(each, Described)), None)


def entry(parameter: "Parameter") -> list[str]:
    """`key = default (what it may be): meaning`, folded."""
    from specbench.cli.help.text import WIDTH, shown

    value = f"[{shown(parameter.value)}]" if isinstance(parameter.value, tuple) else shown(parameter.value)
    default = "must be given" if parameter.value is None and parameter.required else f"= {value}"
    bounds = f" ({parameter.range})" if parameter.type == "one of" else ""
    meaning = f": {parameter.meaning}" if parameter.meaning else ""
    return wrap(f"{parameter.key} {default}{bounds}{meaning}", WIDTH, initial_indent="  ", subsequent_indent="      ")
