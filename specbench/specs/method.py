"""A decoding method as a frozen model: what methods/*.yaml may say, checked when it is loaded."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError, nearest
from specbench.registry import BRIDGES, DRAFTERS
from specbench.specs import dotted
from specbench.specs.components import DrafterSpec, Name, Spec, Text, VerificationSpec, Version, build


class MethodSpec(Spec):
    """A decoding method: a drafter, the rule that verifies its tokens, the bridge between the two vocabularies."""

    name: Name
    version: Version
    title: Text
    paper: str | None = None
    decodes_with: Literal["target", "drafter"] = "target"  # "drafter": the drafter decodes alone, as a floor
    drafter: DrafterSpec
    verification: VerificationSpec
    bridge: str = "shared"
    num_draft_tokens: Annotated[int, Field(ge=0, le=64)]
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)

    @property
    def lossless(self) -> bool:
        """Whether the output follows the target's distribution: derived from the rule, never declared."""
        return self.decodes_with == "target" and bool(getattr(self.verification.factory, "lossless", False))

    @property
    def needs_drafter(self) -> bool:
        """Whether a drafter model must be given."""
        return self.decodes_with == "drafter" or bool(getattr(self.drafter.factory, "needs_model", False))

    @model_validator(mode="before")
    @classmethod
    def _not_declared(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "lossless" in data:
            raise ConfigError("lossless: this is derived from verification.rule, not declared: delete the key")
        return data

    @field_validator("bridge")
    @classmethod
    def _known_bridge(cls, bridge: str) -> str:
        try:
            BRIDGES.get(bridge)
        except ConfigError as error:
            raise ConfigError(f"bridge: {error}") from error
        return bridge

    @model_validator(mode="after")
    def _legal(self) -> "MethodSpec":
        drafts = self.drafter.type != "none"
        if drafts and self.decodes_with == "drafter":
            raise ConfigError(f"drafter.type = '{self.drafter.type}': to decode alone it must be 'none'")
        if drafts and self.num_draft_tokens == 0:
            raise ConfigError("num_draft_tokens = 0: nothing is drafted: write 1 or more, or drafter: {type: none}")
        if not drafts and self.num_draft_tokens > 0:
            raise ConfigError(f"num_draft_tokens = {self.num_draft_tokens}: the drafter 'none' drafts nothing: write 0")
        requires = _feature_set(self.verification.factory, "requires")
        lacking = requires - _feature_set(self.drafter.factory, "provides")
        if lacking:
            drafters = [name for name in DRAFTERS.names() if name != "none"]
            able = [name for name in drafters if requires <= _feature_set(DRAFTERS.get(name), "provides")]
            raise ConfigError(
                f"verification.rule = '{self.verification.rule}': needs {', '.join(sorted(lacking))}, which drafter "
                f"'{self.drafter.type}' lacks: choose another rule or a drafter that has it ({', '.join(able)})"
            )
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


def _feature_set(factory: Any, attribute: str) -> frozenset[str]:
    return frozenset(getattr(factory, attribute, ()))
