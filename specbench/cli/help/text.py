"""Help as text of at most 100 columns, and the keys of specs and components, which are read from the annotations that
validate them."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from textwrap import indent, wrap
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from specbench.core.validation import MAX_INT

WIDTH = 100
NAMES = {"number": "a number", "integer": "an integer", "string": "a text", "boolean": "true or false",
         "array": "a list", "object": "a mapping", "null": "null"}  # fmt: skip
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


@dataclass(frozen=True)
class Parameter:
    """A key. `range`: empty if the type has no bounds. `settable`: whether --set can change it."""

    key: str
    type: str
    range: str
    required: bool
    default: object
    value: object
    meaning: str | None
    settable: bool

    def lines(self, is_option: bool = False) -> Iterator[str]:
        """Yields key and value; type, range and default; meaning. An option has no value."""
        yield from folded(self.key + ("" if is_option else f" = {shown(self.value)}"), 2, 6)
        kind = ", ".join(filter(None, (self.type, self.range)))
        kind = kind.replace("only, ", "only ").replace("one of, ", "one of ")
        default = "must be given" if self.required else f"default {shown(self.default)}"
        place = "" if self.settable or is_option else "; --set cannot change it: write it in the method's file"
        yield from folded(f"{kind}; {default}{place}", 6)
        yield from folded(self.meaning or "", 6)


class AnySchema(GenerateJsonSchema):
    """A JSON Schema generator that accepts any type and omits the default bound of integers."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        found = super().int_schema(schema)
        return {key: value for key, value in found.items() if (key, value) != ("maximum", MAX_INT)}

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass


@lru_cache
def schema_of(model: type[BaseModel]) -> JsonSchemaValue:
    return model.model_json_schema(schema_generator=AnySchema)


def field_parameters(
    model: type[BaseModel], place: str, values: Mapping[str, object], settable: set[str]
) -> list[Parameter]:
    """Returns the fields of a model. `place`: the parent key; `values`: the given values."""
    schema = schema_of(model)
    found = []
    for name, field in model.model_fields.items():
        own = schema["properties"].get(name, {})
        kind, bounds = kind_and_range(own, schema.get("$defs", {}))
        default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        key = f"{place}.{name}" if place else name
        described = (each["description"] for each in (own, *own.get("anyOf", ())) if "description" in each)
        found.append(Parameter(
            key=key, type=kind, range=bounds, required=field.is_required(), default=default,
            value=values.get(name, default), meaning=next(described, field.description), settable=key in settable,
        ))  # fmt: skip
    return found


def kind_and_range(schema: JsonSchemaValue, definitions: JsonSchemaValue) -> tuple[str, str]:
    """Returns a JSON schema's type and range in words: ("a number", "0 to 1") or ("one of", "raw, processed")."""
    if "$ref" in schema:
        schema = {**definitions.get(schema["$ref"].rpartition("/")[2], {}), **schema}
    if "anyOf" in schema:
        pairs = [kind_and_range(choice, definitions) for choice in schema["anyOf"]]
        ranges = [bounds for _, bounds in pairs if bounds]
        return " or ".join(kind for kind, _ in pairs), "; ".join(ranges)
    if "const" in schema:
        return "only", str(schema["const"]).replace("True", "true")
    if "enum" in schema:
        return "one of", ", ".join(map(str, schema["enum"]))
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        bounds = f"{low:g} to {high:g}" if isinstance(low, float) else f"{low} to {high}"
    else:
        bounds = " and ".join(f"{words} {schema[key]:g}" for key, words in BOUNDS.items() if key in schema)
    return NAMES.get(schema.get("type", ""), "any value"), schema.get("range") or bounds


def section(title: str, lines: Iterable[str]) -> list[str]:
    """Returns a title with its lines, or nothing if there are no lines."""
    content = list(lines)
    return ["", f"{title}:", *content] if content else []


def paragraphs(text: str, depth: int) -> Iterator[str]:
    """Yields wrapped prose. Indented text and lists are not wrapped."""
    for paragraph in filter(None, text.split("\n\n")):
        if any(line.startswith((" ", "- ", "* ", "|", ">>>")) for line in paragraph.splitlines()):
            yield from indent(paragraph, " " * depth).splitlines()
        else:
            yield from folded(paragraph, depth)


def folded(text: str, depth: int = 0, hanging: int | None = None) -> list[str]:
    """Returns a text as wrapped lines. `hanging`: the columns by which lines after the first are indented; by default
    `depth`, or two columns if that is 0."""
    rest = (depth or 2) if hanging is None else hanging
    return wrap(text, WIDTH, initial_indent=" " * depth, subsequent_indent=" " * rest, break_on_hyphens=False)


def verbatim(text: str | None) -> list[str]:
    return [line for each in (text or "").splitlines() for line in folded(each, 2) or [""]]


def shown(value: object) -> str:
    """Returns a value as YAML writes it."""
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shown(each)}' for key, each in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def flow(values: Mapping[str, Any] | None) -> str:
    """Returns the set keys of a mapping with their values in one line."""
    given = {key: value for key, value in (values or {}).items() if value not in (None, (), [])}
    return ", ".join(f"{key} {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in given.items())
