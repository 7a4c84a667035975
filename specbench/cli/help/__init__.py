"""Help of methods and tasks. This module reads the parameters of a method from the annotations that validate them."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from specbench.core import dotted
from specbench.core.validation import MAX_INT
from specbench.specs.catalogue import FIXED
from specbench.specs.components import Component
from specbench.specs.method import SHARE, MethodSpec, RouteSpec

NAMES = {"number": "a number", "integer": "an integer", "string": "a text", "boolean": "true or false",
         "array": "a list", "object": "a mapping", "null": "null"}  # fmt: skip
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


class Parameter(BaseModel):
    """A key. `range`: empty if the type has no bounds. `settable`: whether --set can change it."""

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
    """A JSON Schema generator that accepts any type and omits the default bound of integers."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        found = super().int_schema(schema)
        return {key: value for key, value in found.items() if (key, value) != ("maximum", MAX_INT)}

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass


@lru_cache
def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(schema_generator=AnySchema)


def parameters(method: MethodSpec) -> list[Parameter]:
    """Returns all parameters of a method, with the draft length first. Imports an external decoder's code."""
    settable = set(dotted.flat(method.model_dump(exclude={"sweep"}))) - set(FIXED)
    options: list[tuple[str, type[BaseModel], Mapping[str, Any]]]
    if method.decoder is not None:
        from specbench.integrations.external import OFFERED, load_entry, options_model

        code = load_entry(method.decoder.entry)
        model = options_model(code.call, OFFERED, 0 if code.is_class else 1)  # specbench sets the offered ones
        options = [("decoder.options", model, method.decoder.options)]
    else:
        routes = None if method.routes is None else method.routes.items()
        components: dict[str, Component] = {"drafter": method.drafter} if routes is None else {
            f"routes.{name}.drafter": route.drafter for name, route in routes if route.drafter is not None
        }  # fmt: skip
        components |= {"verification": method.verification, "bridge": method.bridge}
        options = [(place, part.registry.options_model(part.name), part.options) for place, part in components.items()]
    found = [each for place, model, values in options for each in field_parameters(model, place, values, settable)]
    return [*own_keys(method), *found]


def own_keys(method: MethodSpec) -> Iterator[Parameter]:
    """Yields the share that the drafter decodes alone, and the draft lengths, with those of all routes, set or not."""
    schema = schema_of(MethodSpec)["properties"]["num_draft_tokens"]
    length = Parameter(
        key="num_draft_tokens", type=NAMES["integer"], range=f"1 to {schema['maximum']}", required=True, default=None,
        value=method.num_draft_tokens, meaning=schema["description"], settable=True,
    )  # fmt: skip
    if method.decodes_with == "random":
        share = {"type": NAMES["number"], "range": "0 to 1", "value": method.drafter_share, "meaning": SHARE}
        yield length.model_copy(update={"key": "drafter_share", **share})
    if method.decoder is not None or method.drafter.type != "none":
        yield length
    own = {
        "type": f"{NAMES['integer']} or null", "required": False,
        "meaning": schema_of(RouteSpec)["properties"]["num_draft_tokens"]["description"],
    }  # fmt: skip
    for name, route in (method.routes or {}).items():
        key = f"routes.{name}.num_draft_tokens"
        yield length.model_copy(update={"key": key, "value": route.num_draft_tokens, **own})


def field_parameters(
    model: type[BaseModel], place: str, values: Mapping[str, Any], settable: set[str]
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


def kind_and_range(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[str, str]:
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
