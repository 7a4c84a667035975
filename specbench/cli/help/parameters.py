"""The parameters of a method, read from the annotations that check their values."""

import inspect
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from specbench.specs import components as dotted
from specbench.specs.components import Component
from specbench.specs.method import SHARE, MethodSpec
from specbench.specs.parameters import NAMES, AnySchema, Parameter, described

OFFERED = ("target", "drafter", "num_draft_tokens", "sampling", "max_new_tokens", "eos_token_ids", "seed", "on_token")


def parameters(method: MethodSpec) -> list[Parameter]:
    """Returns all parameters of a method, the draft length first. Imports the code of an external decoder."""
    settable = set(dotted.leaves(method.model_dump(exclude={"sweep"})))
    found: list[Parameter] = []
    if method.decoder is not None:
        options = external_options(method.decoder.entry)
        found += described(options, "decoder.options", method.decoder.options, settable)
    else:
        for place, component in components(method):
            found += described(options_of(component), place, component.options, settable)
    drafts = method.decoder is not None or method.drafter.type != "none"
    lengths = [draft_length(method)] * drafts + route_lengths(method)
    return [drafter_share(method)] * (method.decodes_with == "random") + lengths + found


def components(method: MethodSpec) -> list[tuple[str, Component]]:
    """Returns the components with the keys above them; with routes, a drafter for each route that names one."""
    drafters: list[tuple[str, Component]] = [("drafter", method.drafter)]
    if method.routes is not None:
        routes = method.routes.items()
        drafters = [(f"routes.{name}.drafter", route.drafter) for name, route in routes if route.drafter is not None]
    return [*drafters, ("verification", method.verification), ("bridge", method.bridge)]


def options_of(component: Component) -> type[BaseModel]:
    return component.registry.options_model(component.name)


def external_options(entry: str) -> type[BaseModel]:
    """Returns the options of an external decoder: the parameters of its code that specbench does not pass itself."""
    from specbench.integrations.entry import load

    code = load(entry)
    try:
        signature = inspect.signature(code.call, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):  # annotations that exist for a type checker only
        signature = inspect.signature(code.call)
    given = list(signature.parameters.values())[0 if code.is_class else 1 :]
    fields: dict[str, Any] = {
        p.name: (
            Any if p.annotation is p.empty or isinstance(p.annotation, str) else p.annotation,
            ... if p.default is p.empty else p.default,
        )
        for p in given
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in OFFERED
    }
    return create_model("decoder options", __config__=ConfigDict(arbitrary_types_allowed=True), **fields)


def draft_length(method: MethodSpec) -> Parameter:
    """Returns the draft length of a method that drafts, which is at least one token."""
    properties = MethodSpec.model_json_schema(schema_generator=AnySchema)["properties"]
    known = properties["num_draft_tokens"]
    return Parameter(
        key="num_draft_tokens", type=NAMES["integer"], range=f"1 to {known['maximum']}", required=True, default=None,
        value=method.num_draft_tokens, meaning=known["description"], settable=True,
    )  # fmt: skip


def route_lengths(method: MethodSpec) -> list[Parameter]:
    """Returns the draft lengths that routes have, or may have, of their own."""
    common = draft_length(method)
    kind, meaning = f"{NAMES['integer']} or null", "Draft tokens per step of this route; null: num_draft_tokens."
    return [
        common.model_copy(update={"key": f"routes.{name}.num_draft_tokens", "type": kind, "required": False,
                                  "value": route.num_draft_tokens, "meaning": meaning})
        for name, route in (method.routes or {}).items()
    ]  # fmt: skip


def drafter_share(method: MethodSpec) -> Parameter:
    """Returns the share of the queries that the drafter decodes alone."""
    return Parameter(
        key="drafter_share", type=NAMES["number"], range="0 to 1", required=True, default=None,
        value=method.drafter_share, meaning=SHARE, settable=True,
    )  # fmt: skip
