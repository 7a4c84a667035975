"""Routes: which drafter drafts for which language (keys `routes` and `language` of a method)."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from specbench.errors import ConfigError
from specbench.specs.components import DrafterSpec, Spec

DEFAULT = "default"
CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*")
# What a method with routes has once only, or not at all.
REFUSED = {
    "decoder": "an external decoder has its own drafter: delete one of the two keys",
    "drafter": "each route has its own: write the common one as routes.default.drafter",
    "drafter_share": "queries go where their language sends them, not by a share: delete the key",
}


class RouteSpec(Spec):
    """What a language has of its own: the drafter is else that of the default route, the draft length the method's."""

    drafter: DrafterSpec | None = None
    num_draft_tokens: Annotated[int, Field(ge=0, le=64)] | None = None

    @model_serializer(mode="wrap")
    def _without_absent_drafter(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        return {key: value for key, value in data.items() if key != "drafter" or value is not None}


def with_default_drafter(data: Mapping[str, Any]) -> dict[str, Any]:
    """A method's keys with the default route's drafter as its `drafter`, and how the language is told.

    Raises ConfigError for keys that routes do not go with, codes that name no language, and a missing default.
    """
    routes = data["routes"]
    if not isinstance(routes, Mapping) or not routes:
        raise ConfigError(f"routes = {routes!r:.60}: write a mapping, such as routes: {{default: {{drafter: …}}}}")
    for key, problem in REFUSED.items():
        if data.get(key) is not None:
            raise ConfigError(f"{key}: {problem}")
    if data.get("decodes_with", "target") != "target":
        raise ConfigError("decodes_with: a method with routes decodes with the target: delete the key")
    for name in routes:
        if name != DEFAULT and not CODE.fullmatch(str(name)):
            raise ConfigError(f"routes.{name}: no code of a language: write one such as sw or pt-BR, or '{DEFAULT}'")
    default = routes.get(DEFAULT)
    if not isinstance(default, Mapping | RouteSpec):
        raise ConfigError(
            f"routes.{DEFAULT}: the key '{DEFAULT}' is missing: add the drafter of all other languages, such as "
            f"{DEFAULT}: {{drafter: {{type: model}}}}"
        )
    drafter = default.drafter if isinstance(default, RouteSpec) else default.get("drafter")
    if drafter is None:
        raise ConfigError(f"routes.{DEFAULT}.drafter: the key 'drafter' is missing: other routes fall back on it")
    return {**data, "language": data.get("language") or "given", "drafter": drafter}


def check_identifiable(routes: Mapping[str, RouteSpec]) -> None:
    """Raise ConfigError for a route that no identified language leads to."""
    from specbench.scoring.language import known

    for name in routes:
        if name != DEFAULT and known(name) != name:
            code = known(name)
            hint = f"write {code}" if code else "leave the route out, or write language: given"
            raise ConfigError(f"routes.{name}: no language that is identified from a prompt has this code: {hint}")
