"""Describes the keys of a model: types, ranges, defaults and meanings, read from its annotations."""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from specbench.core.registry import MAX_INT

NAMES = {"number": "a number", "integer": "an integer", "string": "a text", "boolean": "true or false",
         "array": "a list", "object": "a mapping", "null": "null"}  # fmt: skip
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


class Parameter(BaseModel):
    """One key. `range` is empty if the type says all. `settable`: --set can change it, not only a file."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    key: str
    type: str
    range: str
    required: bool
    default: Any
    value: Any
    meaning: str | None
    settable: bool


class AnySchema(GenerateJsonSchema):
    """JSON Schema in which a type that it cannot express, and a plain integer, have no range."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        found = super().int_schema(schema)
        return {key: value for key, value in found.items() if (key, value) != ("maximum", MAX_INT)}

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass


def described(model: type[BaseModel], place: str, values: Mapping[str, Any], settable: set[str]) -> list[Parameter]:
    """Returns the fields of a model. `values` are those that are given, `place` is the key above the fields."""
    schema = model.model_json_schema(schema_generator=AnySchema)
    found = []
    for name, field in model.model_fields.items():
        known = schema["properties"].get(name, {})
        kind, bounds = kind_and_range(known, schema.get("$defs", {}))
        default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        key = f"{place}.{name}" if place else name
        found.append(
            Parameter(
                key=key, type=kind, range=bounds, required=field.is_required(), default=default,
                value=values.get(name, default), meaning=meaning(known) or field.description, settable=key in settable,
            )
        )  # fmt: skip
    return found


def meaning(schema: Mapping[str, Any]) -> str | None:
    """Returns the description, which may be that of one of the alternatives of a type."""
    found = [each["description"] for each in (schema, *schema.get("anyOf", ())) if "description" in each]
    return found[0] if found else None


def kind_and_range(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[str, str]:
    """Returns a JSON schema in words: ("a number", "0 to 1"), or ("one of", "raw, processed")."""
    if "$ref" in schema:
        schema = {**definitions.get(schema["$ref"].rpartition("/")[2], {}), **schema}
    if "anyOf" in schema:
        pairs = [kind_and_range(choice, definitions) for choice in schema["anyOf"]]
        ranges = [bounds for _, bounds in pairs if bounds]
        return " or ".join(kind for kind, _ in pairs), "; ".join(ranges)
    if "const" in schema:
        return "only", shown(schema["const"])
    if "enum" in schema:
        return "one of", ", ".join(map(str, schema["enum"]))
    return NAMES.get(schema.get("type", ""), "any value"), schema.get("range") or bounded(schema)


def bounded(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{low:g} to {high:g}" if isinstance(low, float) else f"{low} to {high}"
    return " and ".join(f"{words} {schema[key]:g}" for key, words in BOUNDS.items() if key in schema)


def shown(value: Any) -> str:
    """Returns a value as YAML writes it."""
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
