"""What all specs share: frozen pydantic models that forbid unknown keys, and components with options of their own."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError, model_serializer, model_validator

from specbench.errors import ConfigError
from specbench.registry import BRIDGES, DRAFTERS, RULES, SCORERS, Factory, Registry, Strict, first_problem

Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Version = Annotated[int, Field(ge=1)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Engine = Literal["eager", "compiled"]  # how the models' passes are run
Chat = Literal["auto", "always", "never"]


class Spec(Strict):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


AnySpec = TypeVar("AnySpec", bound=Spec)


def build(model: type[AnySpec], data: Mapping[str, Any], prefix: str = "") -> AnySpec:
    """A validated spec. Raises ConfigError: `prefix` ("methods/my.yaml: "), the key's path and what is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(prefix + first_problem(error, model)) from error
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


class Component(Spec):
    """A flat mapping in YAML: one key names the component, the others are its options: {rule: fuzzy, threshold: 0.3}.

    Once validated, `options` is complete: the factory's defaults are filled in.
    """

    options: dict[str, Any]

    registry: ClassVar[Registry]
    place: ClassVar[str]
    key: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _unflatten(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
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


class VerificationSpec(Component):
    registry, place, key = RULES, "verification", "rule"
    rule: str


class BridgeSpec(Component):
    """Written as a word, or as a mapping where it has options."""

    registry, place, key = BRIDGES, "bridge", "type"
    type: str

    @model_validator(mode="before")
    @classmethod
    def _word(cls, data: Any) -> Any:
        return {"type": data} if isinstance(data, str) else data

    @model_serializer(mode="plain")
    def _as_word(self) -> str | dict[str, Any]:
        return {"type": self.type, **self.options} if self.options else self.type


class ScorerSpec(Component):
    registry, place, key = SCORERS, "scorer", "type"
    type: str

    @property
    def needs_reference(self) -> bool:
        """Whether it judges an answer by a right one; a factory that does not says `needs_reference = False`."""
        return bool(getattr(self.factory, "needs_reference", True))
