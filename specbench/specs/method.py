"""A decoding method as a frozen model: the keys of methods/*.yaml, checked when a file is loaded."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from specbench.core.errors import ConfigError, nearest
from specbench.specs import components as dotted
from specbench.specs.components import BridgeSpec, DrafterSpec, Name, Spec, Text, VerificationSpec, Version, build
from specbench.specs.composition import RouteSpec, check_composition, feature_set, with_default_drafter

PromptDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class CalibrationSpec(Spec):
    """The examples that a method was tuned on, which `specbench tune` writes and a run leaves out."""

    task: Text
    """The task."""
    data: Text
    """Where its rows came from."""
    revision: str | None = None
    """Revision of the rows."""
    prompts: dict[str, tuple[PromptDigest, ...]]
    """Digests of the prompts by subset; the order of the rows, a limit or another copy do not change them."""


ENTRY = re.compile(r".+:[A-Za-z_]\w*")
EXAMPLE = "{type: external, entry: package.module:function}"


class DecoderSpec(Spec):
    """A decoding loop outside of specbench."""

    type: Literal["external"]
    """Always external."""
    entry: str
    """The code, as package.module:name or file.py:name, the file relative to the method's own."""
    drafter: Literal["none", "same_vocabulary", "other_vocabulary"] = "none"
    """Which kind of draft model the code is given."""
    claims_lossless: bool = False
    """Whether the output is said to follow the target's distribution; `specbench audit` finds out."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the code as they are."""

    @property
    def pair_of(self) -> str:
        """A bridge that runs on the kind of pair that this decoder asks for."""
        return "retokenize" if self.drafter == "other_vocabulary" else "shared"

    @model_validator(mode="before")
    @classmethod
    def _a_mapping(cls, data: Any) -> Any:
        if not isinstance(data, (Mapping, cls)):
            raise ValueError(f"write a mapping, such as decoder: {EXAMPLE}")
        return data

    @field_validator("entry")
    @classmethod
    def _names_code(cls, entry: str) -> str:
        if not ENTRY.fullmatch(entry):
            raise ValueError("write it as package.module:name or path/to/file.py:name")
        return entry

    @field_validator("options")
    @classmethod
    def _like_json(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name, value in options.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError, RecursionError) as error:
                kind = type(value).__name__
                raise ValueError(f"'{name}' is a {kind} that JSON cannot hold: write a text in quotes") from error
        return options


def is_file_entry(entry: str) -> bool:
    """Whether an entry names a file and not a module."""
    return entry.rpartition(":")[0].endswith(".py")


# What stands in a method with an external decoder where others name a drafter, a rule and a bridge. No component has
# this name: whoever asks for the factory of one gets a ConfigError.
EXTERNAL_PARTS: dict[str, Any] = {
    "drafter": DrafterSpec.model_construct(type="external", options={}),
    "verification": VerificationSpec.model_construct(rule="external", options={}),
    "bridge": BridgeSpec.model_construct(type="external", options={}),
}


SHARE = "Share of the queries that the drafter decodes alone; the target decodes the others."


class MethodSpec(Spec):
    """A decoding method: a drafter, or one for each language, a verification rule and a vocabulary bridge; or an
    external decoder."""

    name: Name
    """Name of the method."""
    version: Version
    """To be raised when the meaning of the method changes."""
    title: Text
    """What the method is, in a few words."""
    paper: str | None = None
    """Paper of the method, such as arXiv:2211.17192."""
    decodes_with: Literal["target", "drafter", "random"] = "target"
    """target: speculative decoding; drafter: the drafter decodes alone; random: each prompt goes to one of the two."""
    drafter_share: Annotated[float, Field(ge=0, le=1, description=SHARE)] | None = None
    decoder: DecoderSpec | None = None
    """An external decoder, in place of drafter, verification and bridge."""
    language: Literal["given", "identified"] | None = None
    """How routes are chosen: by the task's language, or by that of the prompt."""
    routes: dict[str, RouteSpec] | None = None
    """A drafter for each language, by its code, and one as `default`."""
    drafter: DrafterSpec
    """Proposes draft tokens; with routes it is that of the default route."""
    verification: VerificationSpec
    """Accepts or rejects draft tokens."""
    bridge: BridgeSpec = Field(default_factory=lambda: BridgeSpec.model_validate("shared"))
    """Carries drafts over to the target's vocabulary."""
    num_draft_tokens: Annotated[int, Field(ge=0, le=64)]
    """Draft tokens per step. With more, more are accepted at a time and more are drafted in vain."""
    calibration: CalibrationSpec | None = None
    """The examples that the method was tuned on; a run leaves them out."""
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Values by key that `specbench sweep` tries."""

    @property
    def lossless(self) -> bool:
        """Whether the output follows the target's distribution: derived from the rule, or claimed for external code."""
        if self.decoder is not None:
            return self.decoder.claims_lossless
        return self.decodes_with == "target" and bool(getattr(self.verification.factory, "lossless", False))

    @property
    def needs_drafter(self) -> bool:
        """Whether a draft model is needed, by any route."""
        if self.decoder is not None:
            return self.decoder.drafter != "none"
        drafters = [self.drafter, *(route.drafter for route in (self.routes or {}).values() if route.drafter)]
        return self.decodes_with != "target" or any(_needs_model(drafter) for drafter in drafters)

    @property
    def checkpoint(self) -> str | None:
        """The draft model that the method itself names."""
        if self.decoder is not None or not _needs_model(self.drafter):
            return None
        return self.drafter.options.get("checkpoint")

    @property
    def parts(self) -> "tuple[MethodSpec, ...]":
        """What decodes its queries: itself, or its routes, each a method without routes named METHOD/LANGUAGE."""
        return (self,) if self.routes is None else tuple(self.route(name) for name in self.routes)

    @property
    def most_draft_tokens(self) -> int:
        """The draft length of a step at most, whatever the route."""
        return max(part.num_draft_tokens for part in self.parts)

    def route(self, name: str) -> "MethodSpec":
        """The method of one route. A drafter without a model needs no bridge. Raises ConfigError naming the route."""
        assert self.routes is not None
        own = self.routes[name]
        drafter = own.drafter or self.drafter
        absent = {"routes", "language", "sweep", "calibration", *(() if _needs_model(drafter) else ("bridge",))}
        length = self.num_draft_tokens if own.num_draft_tokens is None else own.num_draft_tokens
        data = {**self.model_dump(exclude=absent), "drafter": drafter.model_dump(), "num_draft_tokens": length}
        made = build(MethodSpec, data, prefix=f"routes.{name}: ")
        return made.model_copy(update={"name": f"{self.name}/{name}"})

    @model_validator(mode="before")
    @classmethod
    def _not_declared(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        if "lossless" in data:
            raise ConfigError(
                "lossless: this is derived from verification.rule, not declared: delete the key"
                + (", and write decoder.claims_lossless" if data.get("decoder") else "")
            )
        if data.get("routes") is not None:
            return with_default_drafter(data)
        if data.get("language") is not None:
            raise ConfigError(f"language = {data['language']!r}: says how routes are chosen: add routes, or delete it")
        return cls._with_parts(data) if data.get("decoder") is not None else data

    @classmethod
    def _with_parts(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """An external decoder's own drafter, rule and bridge, which no key may name."""
        both = [key for key in EXTERNAL_PARTS if data.get(key, EXTERNAL_PARTS[key]) is not EXTERNAL_PARTS[key]]
        if both:
            raise ConfigError(f"{both[0]}: an external decoder has its own: delete the key '{both[0]}' or 'decoder'")
        if data.get("decodes_with", "target") != "target":
            raise ConfigError("decodes_with: an external decoder decodes for the target: delete the key")
        return {**data, **EXTERNAL_PARTS}

    @model_serializer(mode="wrap")
    def _without_the_other_kind(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        absent = {*(EXTERNAL_PARTS if self.decoder is not None else ("decoder",))}
        absent |= {key for key in ("drafter_share", "routes", "language") if data.get(key) is None}
        if self.routes is not None:
            absent.add("drafter")
        return {key: value for key, value in data.items() if key not in absent}

    @property
    def same_vocabulary(self) -> bool:
        """Whether drafter and target must share a vocabulary. Queries that are shared out between the two need it for
        their speed: tokens of two tokenizers in one sum of tokens per second would be tokens of none."""
        if self.decoder is not None:
            return self.decoder.drafter == "same_vocabulary"
        return self.needs_drafter and self.decodes_with != "drafter" and self.bridges_nothing

    @property
    def drafts_token_by_token(self) -> bool:
        """Whether every draft token is a draft pass, as the expected speed-up assumes: where each comes with the draft
        model's own distribution of it, or stands for one that does. Texts that are cut into tokens anew, and copies,
        come without."""
        if self.decoder is not None:
            return False
        if self.routes is not None:
            return all(part.drafts_token_by_token for part in self.parts)
        carried = feature_set(self.drafter.factory, "provides") - feature_set(self.bridge.factory, "removes")
        return "raw_probs" in carried or self.prescribes is not None

    @property
    def prescribes(self) -> str | None:
        """The rule whose acceptance rate the drafter sets; None for drafters that earn theirs."""
        return getattr(self.drafter.factory, "prescribes", None)

    @property
    def bridges_nothing(self) -> bool:
        """Whether the bridge is for two models with one vocabulary."""
        return bool(getattr(self.bridge.factory, "same_vocabulary", False))

    @model_validator(mode="after")
    def _legal(self) -> "MethodSpec":
        check_composition(self)
        return self

    @model_validator(mode="after")
    def _sweep_fits(self) -> "MethodSpec":
        plain = self.model_dump(exclude={"sweep"})
        for path, values in self.sweep.items():
            known = [leaf for leaf in dotted.leaves(plain) if leaf not in ("name", "version", "title", "paper")]
            if path not in known:
                raise ConfigError(f"sweep.{path}: unknown path '{path}': {nearest(path, known)}")
            for value in values:
                build(MethodSpec, dotted.put(plain, path, value), prefix=f"sweep.{path}: ")
        return self


def _needs_model(drafter: DrafterSpec) -> bool:
    return bool(getattr(drafter.factory, "needs_model", False))
