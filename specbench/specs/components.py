"""Base classes of specs: frozen pydantic models that forbid unknown keys, and components with options."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from specbench.core.errors import ConfigError
from specbench.core.registry import (
    BRIDGES,
    CONFIG_ERROR,
    DRAFTERS,
    RULES,
    SCORERS,
    BridgeFeatures,
    DrafterFeatures,
    Factory,
    Registry,
    RuleFeatures,
    ScorerFeatures,
    StrictModel,
    all_problems,
)

Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Version = Annotated[int, Field(ge=1)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantize = Literal["none", "nf4", "int8"]  # of the target's weights
DeviceMap = Literal["none", "auto"]
# auto: graphs if the device supports them and the models can be recorded, else eager.
EngineName = Literal["auto", "eager", "graphs", "compiled"]
# The engine of a row; "… target" if the drafter runs eagerly, "served …" with the name and version of a server.
RowEngine = (
    Literal["eager", "graphs", "compiled", "graphs target", "compiled target"]
    | Annotated[str, Field(pattern=r"^served .+$")]
)
StaticEngine = Literal["graphs", "compiled"]  # engines with passes of fixed shapes
Chat = Literal["auto", "always", "never"]


class Spec(StrictModel):
    """A frozen model that refuses unknown keys. The docstring below a key is its description in the help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


AnySpec = TypeVar("AnySpec", bound=Spec)


def build(model: type[AnySpec], data: Mapping[str, Any], prefix: str = "") -> AnySpec:
    """Returns a validated spec. Raises ConfigError with `prefix` ("methods/my.yaml: "), the key and the problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first, *others = (prefix + problem for problem in all_problems(error, model))
        raise ConfigError(first, others) from error
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


class Component(Spec):
    """A component of a method or task. In YAML it is a flat mapping such as {rule: fuzzy, threshold: 0.3}.

    One key names the component; the others are its options. After validation, `options` includes the factory's
    defaults.
    """

    options: dict[str, Any]

    registry: ClassVar[Registry[..., Any]]
    place: ClassVar[str]
    key: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _unflatten(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        try:
            return cls._with_options(data)
        except ConfigError as error:  # pydantic collects it with the other problems of a file
            raise PydanticCustomError(CONFIG_ERROR, "{problem}", {"problem": str(error)}) from error

    @classmethod
    def _with_options(cls, data: Any) -> dict[str, Any]:
        """Returns the name and the complete options."""
        if not isinstance(data, Mapping):
            example = f"{cls.place}: {{{cls.key}: {cls.registry.names()[0]}}}"
            raise ConfigError(f"{cls.place} = {data!r}: write a mapping, such as {example}")
        options = dict(data)
        name = options.pop(cls.key, None)
        if not isinstance(name, str):
            known = ", ".join(cls.registry.names())
            raise ConfigError(f"{cls.place}.{cls.key}: the key '{cls.key}' is missing: add it (choices: {known})")
        try:
            cls.registry.get(name)
        except ConfigError as error:
            raise ConfigError(f"{cls.place}.{cls.key}: {error}") from error
        return {cls.key: name, "options": cls.registry.complete(name, options, cls.place)}

    @model_serializer(mode="plain")
    def _flatten(self) -> dict[str, Any]:
        return {self.key: self.name, **self.options}

    @property
    def name(self) -> str:
        return str(getattr(self, self.key))

    @property
    def factory(self) -> Factory:
        return self.registry.get(self.name)


class DrafterSpec(Component):
    registry, place, key = DRAFTERS, "drafter", "type"
    type: str

    @property
    def features(self) -> DrafterFeatures:
        return DRAFTERS.features(self.type)

    @property
    def needs(self) -> str | None:
        """What a user must provide besides models, with instructions in brackets."""
        return self.features.needs and self.features.needs.format_map(self.options)


class VerificationSpec(Component):
    registry, place, key = RULES, "verification", "rule"
    rule: str

    @property
    def features(self) -> RuleFeatures:
        return RULES.features(self.rule)


class BridgeSpec(Component):
    """A vocabulary bridge, written as a word, or as a mapping if it has options."""

    registry, place, key = BRIDGES, "bridge", "type"
    type: str

    @property
    def features(self) -> BridgeFeatures:
        return BRIDGES.features(self.type)

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, data: Any) -> Any:
        return {"type": data} if isinstance(data, str) else data

    @model_serializer(mode="plain")
    def _as_word(self) -> str | dict[str, Any]:
        return {"type": self.type, **self.options} if self.options else self.type


class ScorerSpec(Component):
    registry, place, key = SCORERS, "scorer", "type"
    type: str

    @property
    def features(self) -> ScorerFeatures:
        return SCORERS.features(self.type)


def check_json_values(values: Any, place: str) -> None:
    """Raises ConfigError that names the key (`place` + key) of a value that JSON cannot represent, such as a date."""
    for name, value in values.items() if isinstance(values, Mapping) else ():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            kind = type(value).__name__
            raise ConfigError(f"{place}{name}: a {kind} that JSON cannot hold: write a text in quotes") from error


MIN_TEMPERATURE = 0.01  # logits divided by less would overflow
MAX_TEMPERATURE = 100.0  # divided by more, most logits are equal in float32, and tokens would be random
RANGE = f"0 (greedy), or {MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}"


def check_temperature(temperature: float) -> float:
    """Returns the temperature. Raises ValueError between 0 and 0.01 (exclusive), and above 100."""
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"input should be 0 (greedy) or at least {MIN_TEMPERATURE}")
    if temperature > MAX_TEMPERATURE:
        raise ValueError(f"input should be at most {MAX_TEMPERATURE:g}")
    return temperature


Temperature = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False, json_schema_extra={"range": RANGE}),
    AfterValidator(check_temperature),
]
DraftTemperature = Annotated[
    Temperature | None,
    Field(description="Temperature of the drafts; null: the run's temperature. Top-k and top-p are always the run's."),
]
