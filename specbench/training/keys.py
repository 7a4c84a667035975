"""The keys of a kind of training for its help: defaults, what they may be and mean, read from the specs that check
them."""

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, get_args, get_origin

from specbench.help.parameters import Parameter, described
from specbench.help.text import WIDTH, shown
from specbench.training.described import Described
from specbench.training.ngram_spec import NgramSpec
from specbench.training.spec import BLOCKS, DEFAULTS, TrainSpec


def keys_text(kind: str) -> str:
    """One entry for each key that --set and --config take."""
    return "\n".join(["Keys of --set and --config:", *(line for key in keys(kind) for line in entry(key))])


def keys(kind: str) -> Iterator[Parameter]:
    """The keys of a kind, those of its parts by their dotted names."""
    model: type[Described] = TrainSpec if kind in DEFAULTS else NgramSpec
    for parameter in keys_of(model, "", DEFAULTS.get(kind, {})):
        block = parameter.key.partition(".")[0]
        if block != "kind" and (block == kind or block not in BLOCKS):
            yield parameter


def keys_of(model: type[Described], place: str, defaults: Mapping[str, Any]) -> Iterator[Parameter]:
    """The keys of a spec in order; a part that may be left out comes with its own keys behind it."""
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


def entry(parameter: Parameter) -> list[str]:
    """`key = default (what it may be): meaning`, folded."""
    value = f"[{shown(parameter.value)}]" if isinstance(parameter.value, tuple) else shown(parameter.value)
    default = "must be given" if parameter.value is None and parameter.required else f"= {value}"
    bounds = f" ({parameter.range})" if parameter.type == "one of" else ""
    meaning = f": {parameter.meaning}" if parameter.meaning else ""
    return wrap(f"{parameter.key} {default}{bounds}{meaning}", WIDTH, initial_indent="  ", subsequent_indent="      ")
