"""An external decoder as a frozen model: code with a loop of its own, in the place of drafter × rule × bridge."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from specbench.specs.components import BridgeSpec, DrafterSpec, Spec, VerificationSpec

ENTRY = re.compile(r".+:[A-Za-z_]\w*")
EXAMPLE = "{type: external, entry: package.module:function}"


class DecoderSpec(Spec):
    """`entry` names the code, as package.module:name or file.py:name; `options` are passed to it as they are.

    `drafter` says which kind of draft model it is given, if any. Whether it is lossless cannot be derived: it may be
    claimed, and `specbench audit` finds out.
    """

    type: Literal["external"]
    entry: str
    drafter: Literal["none", "same_vocabulary", "other_vocabulary"] = "none"
    claims_lossless: bool = False
    options: dict[str, Any] = Field(default_factory=dict)

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
