"""Whether the parts of a method go together: drafter, rule, bridge, draft length, routes, the share of the queries."""

from typing import TYPE_CHECKING, Any

from specbench.errors import ConfigError
from specbench.registry import DRAFTERS
from specbench.specs.routes import check_identifiable

if TYPE_CHECKING:
    from specbench.specs.method import MethodSpec


def check_composition(method: "MethodSpec") -> None:
    """Raise ConfigError, in one line, where the parts of a method do not go together."""
    _check_share(method)
    if method.decoder is not None:
        return
    if method.routes is not None:
        _check_routes(method)
        return
    drafts = method.drafter.type != "none"
    if drafts and method.decodes_with != "target":
        raise ConfigError(f"drafter.type = '{method.drafter.type}': to decode alone it must be 'none'")
    if drafts and method.num_draft_tokens == 0:
        raise ConfigError("num_draft_tokens = 0: nothing is drafted: write 1 or more, or drafter: {type: none}")
    if not drafts and method.num_draft_tokens > 0:
        raise ConfigError(f"num_draft_tokens = {method.num_draft_tokens}: the drafter 'none' drafts nothing: write 0")
    _check_bridge(method)
    _check_features(method)


def _check_share(method: "MethodSpec") -> None:
    """A share is given where queries are shared out, and nowhere else."""
    if method.decodes_with != "random" and method.drafter_share is not None:
        raise ConfigError(
            f"drafter_share = {method.drafter_share:g}: is the share of 'decodes_with: random': delete the key, or "
            "write decodes_with: random"
        )
    if method.decodes_with == "random" and method.drafter_share is None:
        raise ConfigError("drafter_share: the key 'drafter_share' is missing: add it, such as drafter_share: 0.5")
    if method.decodes_with == "random" and not method.bridges_nothing:
        raise ConfigError(
            f"bridge = '{method.bridge.type}': each model decodes alone, so there is nothing to bridge: "
            "leave the key out"
        )


def _check_bridge(method: "MethodSpec") -> None:
    """A bridge is given where a draft model may need it."""
    if (not method.needs_drafter or method.prescribes) and not method.bridges_nothing:
        raise ConfigError(
            f"bridge = '{method.bridge.type}': drafter '{method.drafter.type}' drafts the target's own tokens, "
            "so there is nothing to bridge: leave the key out"
        )


def _check_routes(method: "MethodSpec") -> None:
    """Every route is a legal method, and can be taken."""
    assert method.routes is not None
    _check_bridge(method)
    for name in method.routes:
        method.route(name)
    if method.language == "identified":
        check_identifiable(method.routes)


def _check_features(method: "MethodSpec") -> None:
    """The rule gets what it needs from the drafter, through the bridge."""
    if method.prescribes not in (None, method.verification.rule):
        raise ConfigError(
            f"verification.rule = '{method.verification.rule}': drafter '{method.drafter.type}' prescribes what rule "
            f"'{method.prescribes}' accepts: write verification: {{rule: {method.prescribes}}}"
        )
    requires = feature_set(method.verification.factory, "requires")
    removed = requires & feature_set(method.bridge.factory, "removes")
    if removed:
        raise ConfigError(
            f"verification.rule = '{method.verification.rule}': needs {', '.join(sorted(removed))}, which bridge "
            f"'{method.bridge.type}' cannot carry: choose another rule or another bridge"
        )
    lacking = requires - feature_set(method.drafter.factory, "provides")
    if lacking:
        drafters = [name for name in DRAFTERS.names() if name != "none"]
        able = [name for name in drafters if requires <= feature_set(DRAFTERS.get(name), "provides")]
        raise ConfigError(
            f"verification.rule = '{method.verification.rule}': needs {', '.join(sorted(lacking))}, which drafter "
            f"'{method.drafter.type}' lacks: choose another rule or a drafter that has it ({', '.join(able)})"
        )


def feature_set(factory: Any, attribute: str) -> frozenset[str]:
    """What a component declares that it provides, requires or removes."""
    return frozenset(getattr(factory, attribute, ()))
