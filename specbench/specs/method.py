"""MethodSpec: the keys of methods/*.yaml, checked when a file is loaded."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from specbench.core import dotted
from specbench.core.errors import ConfigError, nearest
from specbench.specs.components import BridgeSpec, DrafterSpec, Name, Spec, Text, VerificationSpec, Version, build
from specbench.specs.composition import RouteSpec, check_composition, with_default_drafter

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


ENTRY = re.compile(r".+:[A-Za-z_]\w*")
EXAMPLE = "{type: external, entry: package.module:function}"


class DecoderSpec(Spec):
    """A decoding loop outside specbench."""

    type: Literal["external", "served"]
    """external: Python code; served: a server of `specbench run --servers`, which sets this itself."""
    entry: str
    """The code, as package.module:name or file.py:name. The file is relative to the method's file."""
    drafter: Literal["none", "same_vocabulary", "other_vocabulary"] = "none"
    """Kind of the draft model that the code is given."""
    claims_lossless: bool = False
    """true: the output is claimed to follow the target's distribution; `specbench audit` tests this."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options that are passed to the code unchanged."""

    @property
    def bridge_type(self) -> str:
        """Returns a bridge that fits the models that this decoder needs."""
        return "retokenize" if self.drafter == "other_vocabulary" else "shared"

    @model_validator(mode="before")
    @classmethod
    def _check_mapping(cls, data: Any) -> Any:
        if not isinstance(data, (Mapping, cls)):
            raise ValueError(f"write a mapping, such as decoder: {EXAMPLE}")
        return data

    @field_validator("entry")
    @classmethod
    def _check_entry(cls, entry: str, info: ValidationInfo) -> str:
        if info.data.get("type") != "served" and not ENTRY.fullmatch(entry):
            raise ValueError("write it as package.module:name or path/to/file.py:name")
        return entry

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name, value in options.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError, RecursionError) as error:
                kind = type(value).__name__
                raise ValueError(f"'{name}' is a {kind} that JSON cannot hold: write a text in quotes") from error
        return options


def is_file_entry(entry: str) -> bool:
    """Returns whether an entry names a file instead of a module."""
    return entry.rpartition(":")[0].endswith(".py")


# Placeholders for the drafter, rule and bridge of a method with an external decoder. No component has this name, so
# looking up a factory raises ConfigError.
EXTERNAL_PARTS: dict[str, Any] = {
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
        return self.decodes_with != "target" or any(drafter.features.needs_model for drafter in drafters)

    @property
    def checkpoint(self) -> str | None:
        """Returns the draft model that the method's file names, if any."""
        if self.decoder is not None or not self.drafter.features.needs_model:
            return None
        return self.drafter.options.get("checkpoint")

    @property
    def parts(self) -> "tuple[MethodSpec, ...]":
        """Returns the method itself, or a method named METHOD/LANGUAGE for each of its routes."""
        return (self,) if self.routes is None else tuple(self.route(name) for name in self.routes)

    @property
    def most_draft_tokens(self) -> int:
        """Returns the maximum draft length over all routes."""
        return max(part.num_draft_tokens for part in self.parts)

    def route(self, name: str) -> "MethodSpec":
        """Returns the method of one route. A drafter without a model gets the default bridge.

        Raises ConfigError with the name of the route.
        """
        assert self.routes is not None
        route = self.routes[name]
        drafter = route.drafter or self.drafter
        absent = {"routes", "language", "sweep", "calibration", *(() if drafter.features.needs_model else ("bridge",))}
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
        if data.get("routes") is not None:
            return with_default_drafter(data)
        if data.get("language") is not None:
            raise ConfigError(f"language = {data['language']!r}: selects among routes: add routes, or delete the key")
        return cls._with_placeholders(data) if data.get("decoder") is not None else data

    @classmethod
    def _with_placeholders(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys with placeholders for drafter, rule and bridge.

        Raises ConfigError if one of these keys is given, or if the target does not decode.
        """
        for key, placeholder in EXTERNAL_PARTS.items():
            if data.get(key, placeholder) is not placeholder:
                raise ConfigError(f"{key}: an external decoder has its own: delete the key '{key}' or 'decoder'")
        if data.get("decodes_with", "target") != "target":
            raise ConfigError("decodes_with: an external decoder decodes for the target: delete the key")
        return {**data, **EXTERNAL_PARTS}

    @model_serializer(mode="wrap")
    def _without_absent_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialize(self)
        absent = set(EXTERNAL_PARTS if self.decoder is not None else ("decoder",))
        absent |= {key for key in ("drafter_share", "routes", "language") if data.get(key) is None}
        if self.routes is not None:
            absent.add("drafter")
        return {key: value for key, value in data.items() if key not in absent}

    @property
    def same_vocabulary(self) -> bool:
        """Returns whether drafter and target must have the same vocabulary.

        `decodes_with: random` needs it too, because tokens per second cannot be summed over two tokenizers.
        """
        if self.decoder is not None:
            return self.decoder.drafter == "same_vocabulary"
        return self.needs_drafter and self.decodes_with != "drafter" and self.bridges_nothing

    @property
    def drafts_token_by_token(self) -> bool:
        """Returns whether every draft token costs one draft pass, as the expected speed-up assumes.

        It does if each token comes with the draft model's distribution, or if the drafter sets the acceptance rate.
        Retokenized drafts and copies have no such distribution.
        """
        if self.decoder is not None:
            return False
        if self.routes is not None:
            return all(part.drafts_token_by_token for part in self.parts)
        carried = self.drafter.features.provides - self.bridge.features.removes
        return "raw_probs" in carried or self.prescribes is not None

    @property
    def prescribes(self) -> str | None:
        """Returns the rule whose acceptance rate the drafter sets, if any."""
        return self.drafter.features.prescribes

    @property
    def bridges_nothing(self) -> bool:
        """Returns whether the bridge is for two models with the same vocabulary."""
        return self.bridge.features.same_vocabulary

    @model_validator(mode="after")
    def _check_composition(self) -> "MethodSpec":
        check_composition(self)
        return self

    @model_validator(mode="after")
    def _check_sweep(self) -> "MethodSpec":
        plain = self.model_dump(exclude={"sweep"})
        for path, values in self.sweep.items():
            known = [leaf for leaf in dotted.flat(plain) if leaf not in ("name", "version", "title", "paper")]
            if path not in known:
                raise ConfigError(f"sweep.{path}: unknown path '{path}': {nearest(path, known)}")
            for value in values:
                build(MethodSpec, dotted.put(plain, path, value), prefix=f"sweep.{path}: ")
        return self
