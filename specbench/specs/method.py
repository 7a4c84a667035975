"""A decoding method as a frozen model: what methods/*.yaml may say, checked when it is loaded."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from specbench.errors import ConfigError, nearest
from specbench.registry import DRAFTERS
from specbench.specs import dotted
from specbench.specs.calibration import CalibrationSpec
from specbench.specs.components import BridgeSpec, DrafterSpec, Name, Spec, Text, VerificationSpec, Version, build
from specbench.specs.decoder import EXTERNAL_PARTS, DecoderSpec

SHARE = "Share of the queries that the drafter decodes alone; the target decodes the others."


class MethodSpec(Spec):
    """A decoding method: a drafter, the rule that verifies its tokens, the bridge between the two vocabularies; or an
    external decoder, whose parts are its own."""

    name: Name
    version: Version
    title: Text
    paper: str | None = None
    decodes_with: Literal["target", "drafter", "random"] = "target"  # "random": each query with one of the two alone
    drafter_share: Annotated[float, Field(ge=0, le=1, description=SHARE)] | None = None
    decoder: DecoderSpec | None = None
    drafter: DrafterSpec
    verification: VerificationSpec
    bridge: BridgeSpec = Field(default_factory=lambda: BridgeSpec.model_validate("shared"))
    num_draft_tokens: Annotated[int, Field(ge=0, le=64)]
    calibration: CalibrationSpec | None = None  # a run leaves these examples out
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)

    @property
    def lossless(self) -> bool:
        """Whether the output follows the target's distribution: derived from the rule, or claimed for external code."""
        if self.decoder is not None:
            return self.decoder.claims_lossless
        return self.decodes_with == "target" and bool(getattr(self.verification.factory, "lossless", False))

    @property
    def needs_drafter(self) -> bool:
        """Whether a drafter model must be given."""
        if self.decoder is not None:
            return self.decoder.drafter != "none"
        return self.decodes_with != "target" or bool(getattr(self.drafter.factory, "needs_model", False))

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
        if self.drafter_share is None:
            absent.add("drafter_share")
        return {key: value for key, value in data.items() if key not in absent}

    @property
    def same_vocabulary(self) -> bool:
        """Whether drafter and target must share a vocabulary. Queries that are shared out between the two need it for
        their speed: tokens of two tokenizers in one sum of tokens per second would be tokens of none."""
        if self.decoder is not None:
            return self.decoder.drafter == "same_vocabulary"
        return self.needs_drafter and self.decodes_with != "drafter" and self._bridges_nothing

    @property
    def drafts_token_by_token(self) -> bool:
        """Whether every draft token is a draft pass, as the expected speed-up assumes: where each comes with the draft
        model's own distribution of it. Texts that are cut into tokens anew, and copies, come without."""
        if self.decoder is not None:
            return False
        carried = _feature_set(self.drafter.factory, "provides") - _feature_set(self.bridge.factory, "removes")
        return "raw_probs" in carried

    @property
    def _bridges_nothing(self) -> bool:
        return bool(getattr(self.bridge.factory, "same_vocabulary", False))

    @model_validator(mode="after")
    def _legal(self) -> "MethodSpec":
        self._check_share()
        if self.decoder is not None:
            return self
        drafts = self.drafter.type != "none"
        if drafts and self.decodes_with != "target":
            raise ConfigError(f"drafter.type = '{self.drafter.type}': to decode alone it must be 'none'")
        if drafts and self.num_draft_tokens == 0:
            raise ConfigError("num_draft_tokens = 0: nothing is drafted: write 1 or more, or drafter: {type: none}")
        if not drafts and self.num_draft_tokens > 0:
            raise ConfigError(f"num_draft_tokens = {self.num_draft_tokens}: the drafter 'none' drafts nothing: write 0")
        if not self.needs_drafter and not self._bridges_nothing:
            raise ConfigError(
                f"bridge = '{self.bridge.type}': drafter '{self.drafter.type}' drafts the target's own tokens, "
                "so there is nothing to bridge: leave the key out"
            )
        self._check_features()
        return self

    def _check_share(self) -> None:
        """A share is given where queries are shared out, and nowhere else."""
        if self.decodes_with != "random" and self.drafter_share is not None:
            raise ConfigError(
                f"drafter_share = {self.drafter_share:g}: is the share of 'decodes_with: random': delete the key, or "
                "write decodes_with: random"
            )
        if self.decodes_with == "random" and self.drafter_share is None:
            raise ConfigError("drafter_share: the key 'drafter_share' is missing: add it, such as drafter_share: 0.5")
        if self.decodes_with == "random" and not self._bridges_nothing:
            raise ConfigError(
                f"bridge = '{self.bridge.type}': each model decodes alone, so there is nothing to bridge: "
                "leave the key out"
            )

    def _check_features(self) -> None:
        """The rule gets what it needs from the drafter, through the bridge."""
        requires = _feature_set(self.verification.factory, "requires")
        removed = requires & _feature_set(self.bridge.factory, "removes")
        if removed:
            raise ConfigError(
                f"verification.rule = '{self.verification.rule}': needs {', '.join(sorted(removed))}, which bridge "
                f"'{self.bridge.type}' cannot carry: choose another rule or another bridge"
            )
        lacking = requires - _feature_set(self.drafter.factory, "provides")
        if lacking:
            drafters = [name for name in DRAFTERS.names() if name != "none"]
            able = [name for name in drafters if requires <= _feature_set(DRAFTERS.get(name), "provides")]
            raise ConfigError(
                f"verification.rule = '{self.verification.rule}': needs {', '.join(sorted(lacking))}, which drafter "
                f"'{self.drafter.type}' lacks: choose another rule or a drafter that has it ({', '.join(able)})"
            )

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


def _feature_set(factory: Any, attribute: str) -> frozenset[str]:
    return frozenset(getattr(factory, attribute, ()))
