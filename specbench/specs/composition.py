"""Checks that the parts of a method fit together: drafter, rule, bridge, draft length, routes, drafter share."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS, RULES
from specbench.specs.components import DrafterSpec, Spec
from specbench.specs.languages import identifiable_code

if TYPE_CHECKING:
    from specbench.specs.method import MethodSpec


DEFAULT = "default"
CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*")
# Keys that a method with routes may not have at its top level.
REFUSED = {
    "decoder": "an external decoder has its own drafter: delete 'decoder' or 'routes'",
    "drafter": "each route has its own drafter: write the common one as routes.default.drafter",
    "drafter_share": "the language of a query selects its drafter, not a share: delete the key",
}


class RouteSpec(Spec):
    """The drafter and the draft length of one language."""

    drafter: DrafterSpec | None = None
    """Drafter of the language; null: the drafter of the default route."""
    num_draft_tokens: Annotated[int, Field(ge=0, le=64)] | None = None
    """Maximum draft tokens on a path (depth of a tree); null: the method's number."""

    @model_serializer(mode="wrap")
    def _without_absent_drafter(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        return {key: value for key, value in data.items() if key != "drafter" or value is not None}


def with_default_drafter(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a method's keys with the default route's drafter as `drafter` and with `language` ("given" by default).

    Raises ConfigError for keys that conflict with routes, for invalid language codes, and for a missing default route.
    """
    routes = data["routes"]
    if not isinstance(routes, Mapping) or not routes:
        raise ConfigError(f"routes = {routes!r:.60}: write a mapping, such as routes: {{default: {{drafter: …}}}}")
    for key, problem in REFUSED.items():
        if data.get(key) is not None:
            raise ConfigError(f"{key}: {problem}")
    if data.get("decodes_with", "target") != "target":
        raise ConfigError("decodes_with: a method with routes always decodes with the target: delete the key")
    for name in routes:
        if name != DEFAULT and not CODE.fullmatch(str(name)):
            raise ConfigError(f"routes.{name}: not a language code: write one such as sw or pt-BR, or '{DEFAULT}'")
    default = routes.get(DEFAULT)
    if not isinstance(default, Mapping | RouteSpec):
        raise ConfigError(
            f"routes.{DEFAULT}: the key '{DEFAULT}' is missing: add the drafter for all other languages, such as "
            f"{DEFAULT}: {{drafter: {{type: model}}}}"
        )
    drafter = default.drafter if isinstance(default, RouteSpec) else default.get("drafter")
    if drafter is None:
        raise ConfigError(f"routes.{DEFAULT}.drafter: the key 'drafter' is missing: other routes fall back on it")
    return {**data, "language": data.get("language") or "given", "drafter": drafter}


def check_identifiable(routes: Mapping[str, RouteSpec]) -> None:
    """Raises ConfigError for a route whose language cannot be identified from a prompt."""
    for name in routes:
        if name != DEFAULT and identifiable_code(name) != name:
            code = identifiable_code(name)
            hint = f"write {code}" if code else "delete the route, or write language: given"
            raise ConfigError(f"routes.{name}: no language that can be identified from a prompt has this code: {hint}")


def check_composition(method: "MethodSpec") -> None:
    """Raises ConfigError, in one line, if the parts of a method do not fit together."""
    _check_share(method)
    if method.decoder is not None:
        return
    if method.routes is not None:
        _check_routes(method)
        return
    drafts = method.drafter.type != "none"
    if drafts and method.decodes_with != "target":
        raise ConfigError(
            f"drafter.type = '{method.drafter.type}': with 'decodes_with: {method.decodes_with}' it must be 'none'"
        )
    if drafts and method.num_draft_tokens == 0:
        raise ConfigError("num_draft_tokens = 0: nothing is drafted: write 1 or more, or drafter: {type: none}")
    if not drafts and method.num_draft_tokens > 0:
        raise ConfigError(f"num_draft_tokens = {method.num_draft_tokens}: the drafter 'none' drafts nothing: write 0")
    _check_bridge(method)
    _check_features(method)


def _check_share(method: "MethodSpec") -> None:
    """Raises ConfigError if `drafter_share` is given without `decodes_with: random`, or missing with it, or if there is
    a bridge although both models decode alone."""
    if method.decodes_with != "random" and method.drafter_share is not None:
        raise ConfigError(
            f"drafter_share = {method.drafter_share:g}: is only for 'decodes_with: random': delete the key, or write "
            "decodes_with: random"
        )
    if method.decodes_with == "random" and method.drafter_share is None:
        raise ConfigError("drafter_share: the key 'drafter_share' is missing: add it, such as drafter_share: 0.5")
    if method.decodes_with == "random" and not method.bridges_nothing:
        raise ConfigError(
            f"bridge = '{method.bridge.type}': each model decodes alone, so there is nothing to bridge: delete the key"
        )


def _check_bridge(method: "MethodSpec") -> None:
    """Raises ConfigError for a bridge between vocabularies if the drafter proposes the target's own tokens."""
    if (not method.needs_drafter or method.prescribes) and not method.bridges_nothing:
        raise ConfigError(
            f"bridge = '{method.bridge.type}': drafter '{method.drafter.type}' drafts the target's own tokens, "
            "so there is nothing to bridge: delete the key"
        )


def _check_routes(method: "MethodSpec") -> None:
    """Raises ConfigError if a route is not a valid method, or if no prompt can select it."""
    assert method.routes is not None
    _check_bridge(method)
    for name in method.routes:
        method.route(name)
    if method.language == "identified":
        check_identifiable(method.routes)


def _check_features(method: "MethodSpec") -> None:
    """Raises ConfigError if the drafter lacks, or the bridge removes, what the verification rule requires."""
    if method.prescribes not in (None, method.verification.rule):
        raise ConfigError(
            f"verification.rule = '{method.verification.rule}': drafter '{method.drafter.type}' sets the acceptance "
            f"rate of rule '{method.prescribes}': write verification: {{rule: {method.prescribes}}}"
        )
    if (num_levels := tree_levels(method.drafter)) is not None:
        _check_trees(method, num_levels)
    requires = method.verification.features.requires
    removed = requires & method.bridge.features.removes
    if removed:
        raise ConfigError(
            f"verification.rule = '{method.verification.rule}': needs {', '.join(sorted(removed))}, which bridge "
            f"'{method.bridge.type}' cannot carry: choose another rule or another bridge"
        )
    lacking = requires - method.drafter.features.provides
    if lacking:
        drafters = [name for name in DRAFTERS.names() if name != "none"]
        able = [name for name in drafters if requires <= DRAFTERS.features(name).provides]
        raise ConfigError(
            f"verification.rule = '{method.verification.rule}': needs {', '.join(sorted(lacking))}, which drafter "
            f"'{method.drafter.type}' lacks: choose another rule or a drafter that has it ({', '.join(able)})"
        )


def tree_levels(drafter: DrafterSpec) -> int | None:
    """Returns the largest number of levels of a drafter's trees, None if it drafts chains only. Raises ConfigError for
    options that give no tree."""
    if (make := drafter.features.tree_shape) is None:
        return None
    shape = make(**drafter.options)
    return shape if isinstance(shape, int) else int(shape.depth)


def _check_trees(method: "MethodSpec", num_levels: int) -> None:
    """Raises ConfigError for a rule or a bridge for chains only, and for a draft length above the trees' levels."""
    if not method.verification.features.verifies_trees:
        able = [name for name in RULES.names() if RULES.features(name).verifies_trees]
        raise ConfigError(
            f"verification.rule = '{method.verification.rule}': verifies chains only, and drafter "
            f"'{method.drafter.type}' proposes trees: choose a rule for trees ({', '.join(able)})"
        )
    if method.num_draft_tokens > num_levels:
        raise ConfigError(
            f"num_draft_tokens = {method.num_draft_tokens}: the drafter's trees have {num_levels} levels: give "
            f"{num_levels} or less, or make the trees deeper"
        )
    check_draws(method, possible_draws(method))
    if not method.bridges_nothing:
        raise ConfigError(
            f"bridge.type = '{method.bridge.type}': translates chains only, and drafter '{method.drafter.type}' "
            "proposes trees: use a drafter with the target's vocabulary and the bridge 'shared'"
        )


def possible_draws(method: "MethodSpec") -> AbstractSet[str]:
    """Returns the ways in which a method's drafter may draw the children of a tree node."""
    declared = method.drafter.features.draws
    return {"fixed"} if declared is None else declared(**method.drafter.options)


def check_draws(method: "MethodSpec", draws: AbstractSet[str], place: str = "") -> None:
    """Raises ConfigError if the rule is valid for none of these ways of drawing children. `place` begins it."""
    valid = method.verification.features.draws
    if valid is None or draws & valid:
        return
    valid_ways, ways = " or ".join(sorted(valid)), " or ".join(sorted(draws))
    remedy = f"set drafter.draws to {valid_ways}, or " if "draws" in method.drafter.options else ""
    raise ConfigError(
        f"{place}verification.rule = '{method.verification.rule}': needs children that are drawn as {valid_ways}, and "
        f"drafter '{method.drafter.type}' draws them as {ways}: {remedy}choose the rule exact_match, which is valid "
        "for all"
    )


def proposes_trees(method: "MethodSpec") -> bool:
    """Returns whether the method's drafter may propose trees."""
    return method.decoder is None and method.drafter.features.tree_shape is not None
