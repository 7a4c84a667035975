"""MethodSpec: the keys of methods/*.yaml, and whether the parts of a method fit together: drafter, verification rule,
vocabulary bridge, draft length, routes."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from specbench.core import dotted
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import DRAFT_LENGTHS, DRAFTERS, RULES, Registry
from specbench.specs.components import (
    BridgeSpec,
    DecoderSpec,
    DrafterSpec,
    DraftLengthSpec,
    Name,
    Spec,
    Text,
    VerificationSpec,
    Version,
    build,
    identifiable_code,
)

PromptDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class CalibrationSpec(Spec):
    """The examples that a method was tuned on. `specbench tune` writes them, and runs exclude them."""

    task: Text
    """Name of the task."""
    data: Text
    """Source of its rows."""
    revision: str | None = None
    """Revision of the rows."""
    prompts: dict[str, tuple[PromptDigest, ...]]
    """Digests of the prompts by subset. They do not depend on the order of rows, a limit or the copy of the data."""


DEFAULT = "default"
CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*")
# Keys that a method with routes may not have at its top level.
REFUSED = {
    "decoder": "an external decoder has its own drafter: delete 'decoder' or 'routes'",
    "drafter": "each route has its own drafter: write the common one as routes.default.drafter",
    "drafter_share": "the language of a query selects its drafter, not a share: delete the key",
}


def inner_name(method: "MethodSpec") -> str:
    """Returns the name under which the model that drafts for a method's draft model is loaded."""
    return f"{method.name}/inner"


class RouteSpec(Spec):
    """The drafter and the draft length of one language."""

    drafter: DrafterSpec | None = None
    """Drafter of the language; null: the drafter of the default route."""
    num_draft_tokens: Annotated[int, Field(ge=0, le=64)] | None = None
    """Maximum draft tokens on a path (depth of a tree); null: the method's number."""

    @model_serializer(mode="wrap")
    def _without_absent_drafter(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        data: dict[str, object] = serialize(self)
        return {key: value for key, value in data.items() if key != "drafter" or value is not None}


def with_default_drafter(data: Mapping[str, object]) -> dict[str, object]:
    """Returns a method's keys with the default route's drafter as `drafter` and with `language` ("given" by default).
    Raises ConfigError for keys that conflict with routes, for invalid language codes, and for a missing default
    route."""
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


# Placeholders for the drafter, rule and bridge of a method with an external decoder. No component has this name, so
# looking up a factory raises ConfigError.
EXTERNAL_PARTS: dict[str, object] = {
    "drafter": DrafterSpec.model_construct(type="external", options={}),
    "verification": VerificationSpec.model_construct(rule="external", options={}),
    "bridge": BridgeSpec.model_construct(type="external", options={}),
}

SHARE = "Share of the queries that the drafter decodes alone. The target decodes the others."


class MethodSpec(Spec):
    """A decoding method: a drafter (or one per language), a verification rule and a vocabulary bridge; or an external
    decoder."""

    name: Name
    """Name of the method."""
    version: Version
    """Version, to be increased when the meaning of the method changes."""
    title: Text
    """Description in a few words."""
    paper: str | None = None
    """Paper of the method, such as arXiv:2211.17192."""
    decodes_with: Literal["target", "drafter", "random"] = "target"
    """target: speculative decoding; drafter: the drafter decodes alone; random: each prompt goes to one of the two."""
    drafter_share: Annotated[float, Field(ge=0, le=1, description=SHARE)] | None = None
    decoder: DecoderSpec | None = None
    """External decoder, which replaces drafter, verification and bridge."""
    language: Literal["given", "identified"] | None = None
    """How a route is selected. given: by the task's language; identified: by the prompt's language."""
    routes: dict[str, RouteSpec] | None = None
    """Drafters by language code, with one as `default`."""
    drafter: DrafterSpec
    """Proposes draft tokens. With routes, it is the drafter of the default route."""
    verification: VerificationSpec
    """Accepts or rejects draft tokens."""
    bridge: BridgeSpec = Field(default_factory=lambda: BridgeSpec.model_validate("shared"))
    """Translates draft tokens into the target's vocabulary."""
    num_draft_tokens: Annotated[int, Field(ge=0, le=64)]
    """Maximum draft tokens on a path (depth of a tree)."""
    draft_length: DraftLengthSpec | None = None
    """How many of them a step drafts, decided while drafting (a policy of a chain); null or fixed: as many as fit."""
    calibration: CalibrationSpec | None = None
    """Examples that the method was tuned on. Runs exclude them."""
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Values, by key, that `specbench sweep` tries."""

    @property
    def lossless(self) -> bool:
        """Returns whether the output follows the target's distribution, according to the rule or an external decoder's
        claim."""
        if self.decoder is not None:
            return self.decoder.claims_lossless
        return self.decodes_with == "target" and self.verification.features.lossless

    @property
    def needs_drafter(self) -> bool:
        """Returns whether the method, or any of its routes, needs a draft model."""
        if self.decoder is not None:
            return self.decoder.drafter != "none"
        drafters = [self.drafter, *(route.drafter for route in (self.routes or {}).values() if route.drafter)]
        return self.decodes_with != "target" or any(drafter.needs_model for drafter in drafters)

    @property
    def checkpoint(self) -> str | None:
        """Returns the draft model that the method's file names, if any."""
        if self.decoder is not None or not self.drafter.needs_model:
            return None
        return self.drafter.options.get("checkpoint")

    @property
    def inner_checkpoint(self) -> str | None:
        """Returns the model that drafts for the draft model, if any."""
        inner = {} if self.decoder is not None else self.drafter.options.get("inner") or {}
        return inner.get("checkpoint")

    @property
    def parts(self) -> "tuple[MethodSpec, ...]":
        """Returns the method itself, or a method named METHOD/LANGUAGE for each of its routes."""
        return (self,) if self.routes is None else tuple(self.route(name) for name in self.routes)

    @property
    def components(self) -> list[tuple[Registry[..., Any], str]]:
        """Returns registry and name of the drafters, the rule, the bridge and the draft length; none for an external
        decoder."""
        parts = [part for part in self.parts if part.decoder is None]
        used = [
            spec for part in parts for spec in (part.drafter, part.verification, part.bridge, part.draft_length)
            if spec is not None
        ]  # fmt: skip
        return [(spec.registry, spec.name) for spec in used]

    @property
    def most_draft_tokens(self) -> int:
        """Returns the maximum draft length over all routes."""
        return max(part.num_draft_tokens for part in self.parts)

    def route(self, name: str) -> "MethodSpec":
        """Returns the method of one route. A drafter without a model gets the default bridge. Raises ConfigError with
        the name of the route."""
        assert self.routes is not None
        route = self.routes[name]
        drafter = route.drafter or self.drafter
        absent = {"routes", "language", "sweep", "calibration", *(() if drafter.needs_model else ("bridge",))}
        if drafter.type == "none":
            absent.add("draft_length")
        length = self.num_draft_tokens if route.num_draft_tokens is None else route.num_draft_tokens
        data = {**self.model_dump(exclude=absent), "drafter": drafter.model_dump(), "num_draft_tokens": length}
        method = build(MethodSpec, data, prefix=f"routes.{name}: ")
        return method.model_copy(update={"name": f"{self.name}/{name}"})

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        if "lossless" in data:
            raise ConfigError(
                "lossless: is derived from verification.rule: delete the key"
                + (", and write decoder.claims_lossless" if data.get("decoder") else "")
            )
        if data.get("draft_length") in ("fixed", {"policy": "fixed"}):
            data = {**data, "draft_length": None}
        if data.get("routes") is not None:
            return with_default_drafter(data)
        if data.get("language") is not None:
            raise ConfigError(f"language = {data['language']!r}: selects among routes: add routes, or delete the key")
        if data.get("decoder") is None:
            return data
        for key, placeholder in EXTERNAL_PARTS.items():
            if data.get(key, placeholder) is not placeholder:
                raise ConfigError(f"{key}: an external decoder has its own: delete the key '{key}' or 'decoder'")
        if data.get("draft_length") is not None:
            raise ConfigError("draft_length: an external decoder chooses its own: delete the key")
        if data.get("decodes_with", "target") != "target":
            raise ConfigError("decodes_with: an external decoder decodes for the target: delete the key")
        return {**data, **EXTERNAL_PARTS}

    @model_serializer(mode="wrap")
    def _without_absent_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        data: dict[str, object] = serialize(self)
        absent = set(EXTERNAL_PARTS if self.decoder is not None else ("decoder",))
        absent |= {key for key in ("drafter_share", "routes", "language", "draft_length") if data.get(key) is None}
        if self.routes is not None:
            absent.add("drafter")
        return {key: value for key, value in data.items() if key not in absent}

    @property
    def same_vocabulary(self) -> bool:
        """Returns whether drafter and target must have the same vocabulary. `decodes_with: random` needs it too,
        because tokens per second cannot be summed over two tokenizers."""
        if self.decoder is not None:
            return self.decoder.drafter == "same_vocabulary"
        return self.needs_drafter and self.decodes_with != "drafter" and self.bridges_nothing

    @property
    def drafts_token_by_token(self) -> bool:
        """Returns whether every draft token costs one draft pass, as the expected speed-up assumes. It does if each
        token comes with the draft model's distribution, or if the drafter sets the acceptance rate. Retokenized drafts
        and copies have no such distribution, some heads draft all tokens in one pass, and drafts of other lengths than
        γ have other costs."""
        if self.decoder is not None:
            return False
        if self.routes is not None:
            return all(part.drafts_token_by_token for part in self.parts)
        carried = self.drafter.features.provides - self.bridge.features.removes
        is_by_token = "raw_probs" in carried and not self.drafter.features.drafts_at_once
        return self.draft_length is None and (is_by_token or self.prescribes is not None)

    @property
    def prescribes(self) -> str | None:
        """Returns the rule whose acceptance rate the drafter sets, if any."""
        return self.drafter.features.prescribes

    @property
    def bridges_nothing(self) -> bool:
        """Returns whether the bridge is for two models with the same vocabulary."""
        return self.bridge.features.same_vocabulary

    def check(self) -> None:
        check_composition(self)
        plain = self.model_dump(exclude={"sweep"})
        known = [leaf for leaf in dotted.flat(plain) if leaf not in ("name", "version", "title", "paper")]
        for path, values in self.sweep.items():
            if path not in known:
                raise ConfigError(f"sweep.{path}: unknown path '{path}': {nearest(path, known)}")
            for value in values:
                build(MethodSpec, dotted.put(plain, path, value), prefix=f"sweep.{path}: ")


def check_composition(method: MethodSpec) -> None:
    """Raises ConfigError, in one line, if the parts of a method do not fit together."""
    is_random = method.decodes_with == "random"
    share = method.drafter_share
    if share is not None and not is_random:
        raise ConfigError(
            f"drafter_share = {share:g}: is only for 'decodes_with: random': delete the key, or write decodes_with: "
            "random"
        )
    if is_random and share is None:
        raise ConfigError("drafter_share: the key 'drafter_share' is missing: add it, such as drafter_share: 0.5")
    if is_random and not method.bridges_nothing:
        raise ConfigError(
            f"bridge = '{method.bridge.type}': each model decodes alone, so there is nothing to bridge: delete the key"
        )
    if method.decoder is not None:
        return
    drafter = method.drafter.type
    length = method.num_draft_tokens
    if method.routes is None and drafter == "none" and length > 0:
        raise ConfigError(f"num_draft_tokens = {length}: the drafter 'none' drafts nothing: write 0")
    if method.routes is None and drafter != "none":
        if method.decodes_with != "target":
            way = f"decodes_with: {method.decodes_with}"
            raise ConfigError(f"drafter.type = '{drafter}': with '{way}' it must be 'none'")
        if length == 0:
            raise ConfigError("num_draft_tokens = 0: nothing is drafted: write 1 or more, or drafter: {type: none}")
    if (not method.needs_drafter or method.prescribes) and not method.bridges_nothing:
        raise ConfigError(
            f"bridge = '{method.bridge.type}': drafter '{drafter}' drafts the target's own tokens, so there is nothing "
            "to bridge: delete the key"
        )
    if method.routes is None:
        _check_features(method)
    for name in method.routes or ():
        method.route(name)  # raises the problems of the route
        code = identifiable_code(name)
        if method.language == "identified" and name not in (DEFAULT, code):
            hint = f"write {code}" if code else "delete the route, or write language: given"
            raise ConfigError(f"routes.{name}: no language that can be identified from a prompt has this code: {hint}")


def _check_features(method: MethodSpec) -> None:
    """Raises ConfigError if the drafter lacks, or the bridge removes, what the verification rule requires."""
    place = f"verification.rule = '{method.verification.rule}'"
    drafter = method.drafter.type
    if (prescribed := method.prescribes) not in (None, method.verification.rule):
        raise ConfigError(
            f"{place}: drafter '{drafter}' sets the acceptance rate of rule '{prescribed}': write verification: "
            f"{{rule: {prescribed}}}"
        )
    if (num_levels := tree_levels(method.drafter)) is not None:
        _check_trees(method, num_levels)
    if method.draft_length is not None:
        _check_length(method, method.draft_length)
    requires = method.verification.features.requires
    if removed := requires & method.bridge.features.removes:
        raise ConfigError(
            f"{place}: needs {', '.join(sorted(removed))}, which bridge '{method.bridge.type}' cannot carry: choose "
            "another rule or another bridge"
        )
    if lacking := requires - method.drafter.features.provides:
        drafters = [name for name in DRAFTERS.names() if name != "none"]
        able = [name for name in drafters if requires <= DRAFTERS.features(name).provides]
        raise ConfigError(
            f"{place}: needs {', '.join(sorted(lacking))}, which drafter '{drafter}' lacks: choose another rule or a "
            f"drafter that has it ({', '.join(able)})"
        )


def _check_length(method: MethodSpec, length: DraftLengthSpec) -> None:
    """Raises ConfigError unless the drafter drafts chains whose length the policy can decide."""
    place = f"draft_length.policy = '{length.policy}'"
    drafter = method.drafter.type
    reason = None
    if drafter == "none":
        reason = "drafter 'none' drafts nothing"
    elif method.prescribes:
        reason = f"drafter '{drafter}' plans its drafts before they are measured"
    elif proposes_trees(method):
        reason = f"drafter '{drafter}' proposes trees, and a draft length is one of chains"
    elif method.bridge.type == "string":
        reason = "bridge 'string' drafts as many bytes as its first token needs"
    if reason is not None:
        raise ConfigError(f"{place}: {reason}: delete the key 'draft_length'")
    if length.features.looks_at_drafts and not method.drafter.features.asks_length:
        able = [name for name in DRAFTERS.names() if DRAFTERS.features(name).asks_length]
        others = [name for name in DRAFT_LENGTHS.names() if not DRAFT_LENGTHS.features(name).looks_at_drafts]
        raise ConfigError(
            f"{place}: reads the probabilities of a draft while it is made, which drafter '{drafter}' does not offer: "
            f"choose a drafter that does ({', '.join(able)}), or another policy ({', '.join(others)})"
        )


def tree_levels(drafter: DrafterSpec) -> int | None:
    """Returns the largest number of levels of a drafter's trees, None if it drafts chains only. Raises ConfigError for
    options that give no tree."""
    if (make := drafter.features.tree_shape) is None:
        return None
    shape = make(**drafter.options)
    return shape if shape is None or isinstance(shape, int) else int(shape.depth)


def _check_trees(method: MethodSpec, num_levels: int) -> None:
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
    _check_widths(method)
    if not method.bridges_nothing:
        raise ConfigError(
            f"bridge.type = '{method.bridge.type}': translates chains only, and drafter '{method.drafter.type}' "
            "proposes trees: use a drafter with the target's vocabulary and the bridge 'shared'"
        )


def _check_widths(method: MethodSpec) -> None:
    """Raises ConfigError if the rule needs nodes with equally many children, and the drafter's trees have others."""
    if not method.verification.features.needs_equal_widths:
        return
    make = method.drafter.features.tree_shape
    shape = None if make is None else make(**method.drafter.options)
    if isinstance(shape, int) or (shape is not None and not shape.has_equal_widths):
        raise ConfigError(
            f"verification.rule = '{method.verification.rule}': needs trees in which all nodes of a depth have equally "
            f"many children, and those of drafter '{method.drafter.type}' have not: give drafter.widths in place of "
            "num_nodes, rank_chances and depth, or choose the rule traversal"
        )


def possible_draws(method: MethodSpec) -> AbstractSet[str]:
    """Returns the ways in which a method's drafter may draw the children of a tree node."""
    declared = method.drafter.features.draws
    return {"fixed"} if declared is None else declared(**method.drafter.options)


def check_draws(method: MethodSpec, draws: AbstractSet[str], place: str = "") -> None:
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


def proposes_trees(method: MethodSpec) -> bool:
    """Returns whether the method's drafter may propose trees."""
    return method.decoder is None and tree_levels(method.drafter) is not None
