"""What specs are made of: a frozen pydantic model that forbids unknown keys, components with options, and the types of
keys: names, temperatures, codes of languages."""

import ast
import inspect
import json
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from specbench.core.errors import ConfigError
from specbench.core.registry import (
    BRIDGES,
    DRAFT_LENGTHS,
    DRAFTERS,
    RULES,
    SCORERS,
    BridgeFeatures,
    DrafterFeatures,
    Factory,
    LengthFeatures,
    Registry,
    RuleFeatures,
    ScorerFeatures,
)
from specbench.core.validation import StrictModel, collected, lines_for_user

Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Version = Annotated[int, Field(ge=1)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantize = Literal["none", "nf4", "int8", "int4"]  # of the target's weights
QUANTIZED_ON = {"cuda": ("nf4", "int8"), "cpu": ("int8", "int4")}  # by bitsandbytes, by torch's own kernels
DeviceMap = Literal["none", "auto"]
CacheDtype = Literal["float16", "float32"]  # of llama.cpp's keys and values
# auto: llama.cpp for GGUF files, graphs if the device supports them and the models can be recorded, else eager.
EngineName = Literal["auto", "eager", "graphs", "compiled", "llama.cpp"]
QUANTIZED_BY: tuple[EngineName, ...] = ("eager", "compiled")  # the engines of quantized weights; compiled: on a CPU
# The engine of a row; "… target" if the drafter runs eagerly, "… target, … drafter" if it has another engine, and
# "served …" with the name and version of a server.
RowEngine = (
    Literal[
        "eager", "graphs", "compiled", "llama.cpp", "graphs target", "compiled target", "llama.cpp target",
        "eager target, llama.cpp drafter", "graphs target, llama.cpp drafter", "compiled target, llama.cpp drafter",
    ]
    | Annotated[str, Field(pattern=r"^served .+$")]
)  # fmt: skip
StaticEngine = Literal["graphs", "compiled"]  # engines with passes of fixed shapes
Chat = Literal["auto", "always", "never"]
SamplingSource = Literal["task", "model"]
PromptChecks = Literal["refuse", "warn"]


def check_quantized(quantize: Quantize, device: str, dtype: str, device_map: str, engine: EngineName) -> None:
    """Raises ConfigError unless a type of device computes with such weights, in this dtype and by this engine."""
    able = QUANTIZED_ON.get(device, ())
    if quantize not in able:
        needed = " or ".join(kind for kind, kinds in QUANTIZED_ON.items() if quantize in kinds)
        needed = needed.replace("cuda", "a CUDA device").replace("cpu", "a CPU")
        remedy = f"take --quantize {' or '.join(able)}" if able else "leave it out"
        raise ConfigError(f"--quantize {quantize}: needs {needed}, and this is {device}: {remedy}")
    if device == "cpu" and dtype not in ("auto", "bfloat16"):
        raise ConfigError(f"--quantize {quantize}: computes in bfloat16 on a CPU: leave out --dtype {dtype}")
    if device == "cpu" and device_map != "none":
        raise ConfigError(f"--quantize {quantize}: there is one device, the CPU: leave out --device-map {device_map}")
    engines = QUANTIZED_BY if device == "cpu" else QUANTIZED_BY[:1]
    if engine not in ("auto", *engines):
        able_engines = " or ".join(engines)
        raise ConfigError(f"--quantize {quantize}: works on {device} only with --engine {able_engines}, not {engine}")


RECORDED = "recorded"  # context of specs that a run wrote: their components are known, and their options complete


class Spec(StrictModel):
    """A frozen model that refuses unknown keys. The docstring below a key is its description in the help."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Adds the descriptions. pydantic's `use_attribute_docstrings` would read them from the source whenever the
        class is imported, which takes a third of the time of `specbench list`."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for part in (part for part in cls.__mro__ if issubclass(part, Spec)):
            for key, text in key_docstrings(part).items():
                if key in properties:
                    properties[key].setdefault("description", text)
        return schema

    @model_validator(mode="after")
    def _check_spec(self, info: ValidationInfo) -> Self:
        if info.context != RECORDED:
            self.check()
        return self

    def check(self) -> None:
        """Raises ConfigError, which names the keys, if the values of valid keys do not fit together."""


AnySpec = TypeVar("AnySpec", bound=Spec)
AnyModel = TypeVar("AnyModel", bound=BaseModel)


def build(
    model: type[AnyModel], data: object, prefix: str = "", *, place: str = "", remedy: str = "", context: object = None
) -> AnyModel:
    """Returns a validated instance of a model. Raises ConfigError, as `lines_for_user` words it. `context`: passed to
    the validators of the model."""
    with lines_for_user(model, prefix, place=place, remedy=remedy):
        return model.model_validate(data, context=context)


@cache
def key_docstrings(model: type) -> dict[str, str]:
    """Returns the docstrings below the keys of a class, without those of its bases."""
    try:
        (definition,) = ast.parse(dedent(inspect.getsource(model))).body
    except OSError:  # made by pydantic's create_model, with descriptions
        return {}
    statements = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        key.target.id: inspect.cleandoc(text.value.value)
        for key, text in pairwise(statements)
        if isinstance(key, ast.AnnAssign)
        and isinstance(key.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def complete_options(
    registry: Registry[..., Any], name: str, options: Mapping[str, object], place: str = ""
) -> dict[str, object]:
    """Returns a component's validated options with defaults filled in. Raises ConfigError that begins with `place`."""
    place = place or f"{registry.kind} '{name}'"
    return build(registry.options_model(name), dict(options), place=place).model_dump()


def check_registered(registry: Registry[..., Any], name: str, place: str) -> None:
    """Raises ConfigError, which begins with `place`, for a name that a registry does not know."""
    try:
        registry.get(name)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


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
    def _unflatten(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, cls):
            return data
        try:
            if info.context == RECORDED:  # its module, which may import torch, is not imported
                return {cls.key: data[cls.key], "options": {key: data[key] for key in data if key != cls.key}}
            return cls._with_options(data)
        except ConfigError as error:  # pydantic collects it with the other problems of a file
            raise collected(error) from error

    @classmethod
    def _with_options(cls, data: Any) -> dict[str, object]:
        if not isinstance(data, Mapping):
            example = f"{cls.place}: {{{cls.key}: {cls.registry.names()[0]}}}"
            raise ConfigError(f"{cls.place} = {data!r}: write a mapping, such as {example}")
        options = dict(data)
        name = options.pop(cls.key, None)
        if not isinstance(name, str):
            known = ", ".join(cls.registry.names())
            raise ConfigError(f"{cls.place}.{cls.key}: the key '{cls.key}' is missing: add it (choices: {known})")
        check_registered(cls.registry, name, f"{cls.place}.{cls.key}")
        return {cls.key: name, "options": complete_options(cls.registry, name, options, cls.place)}

    @model_serializer(mode="plain")
    def _flatten(self) -> dict[str, object]:
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
    def needs_model(self) -> bool:
        """Whether it needs a draft model, under these options."""
        features = self.features
        if features.model_replaced is not None and self.options.get(features.model_replaced) is not None:
            return False
        option = features.model_option
        return features.needs_model or (option is not None and self.options.get(option) is not None)

    @property
    def needs(self) -> str | None:
        """What a user must provide besides models, with instructions in brackets."""
        return self.features.needs and self.features.needs.format_map(self.options)


class DraftLengthSpec(Component):
    registry, place, key = DRAFT_LENGTHS, "draft_length", "policy"
    policy: str

    @property
    def features(self) -> LengthFeatures:
        return DRAFT_LENGTHS.features(self.policy)


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
    def _as_word(self) -> str | dict[str, object]:
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


ENTRY = re.compile(r".+:[A-Za-z_]\w*")
EXAMPLE = "{type: external, entry: package.module:function}"


SERVED: Final = "served"  # the type of the decoders that servers are


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
    options: dict[str, object] = Field(default_factory=dict)
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

    def check(self) -> None:
        try:
            if self.type != "served" and not ENTRY.fullmatch(self.entry):
                problem = "write it as package.module:name or path/to/file.py:name"
                raise ConfigError(f"decoder.entry = {self.entry!r:.60}: {problem}")
            check_json_values(self.options, "decoder.options.")
        except ConfigError as error:  # pydantic collects it with the other problems of a file
            raise collected(error) from error


def is_file_entry(entry: str) -> bool:
    """Returns whether an entry names a file instead of a module."""
    return entry.rpartition(":")[0].endswith(".py")


MIN_TEMPERATURE = 0.01  # logits divided by less would overflow
MAX_TEMPERATURE = 100.0  # divided by more, most logits are equal in float32, and tokens would be random
RANGE = f"0 (greedy), or {MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}"


def check_temperature(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"input should be 0 (greedy) or at least {MIN_TEMPERATURE}")
    if temperature > MAX_TEMPERATURE:
        raise ValueError(f"input should be at most {MAX_TEMPERATURE:g}")
    return temperature


Temperature = Annotated[
    float, Field(ge=0, allow_inf_nan=False, json_schema_extra={"range": RANGE}), AfterValidator(check_temperature)
]
DraftTemperature = Annotated[
    Temperature | None,
    Field(description="Temperature of the drafts; null: the run's temperature. Top-k and top-p are always the run's."),
]

# The languages that lingua identifies, as ISO 639-1:639-3.
LINGUA = dict(re.findall(
    r"(\w+):(\w+)",
    "af:afr ar:ara az:aze be:bel bg:bul bn:ben bs:bos ca:cat cs:ces cy:cym da:dan de:deu el:ell en:eng eo:epo "
    "es:spa et:est eu:eus fa:fas fi:fin fr:fra ga:gle gu:guj he:heb hi:hin hr:hrv hu:hun hy:hye id:ind is:isl "
    "it:ita ja:jpn ka:kat kk:kaz ko:kor la:lat lg:lug lt:lit lv:lav mi:mri mk:mkd mn:mon mr:mar ms:msa nb:nob "
    "nl:nld nn:nno pa:pan pl:pol pt:por ro:ron ru:rus sk:slk sl:slv sn:sna so:som sq:sqi sr:srp st:sot sv:swe "
    "sw:swa ta:tam te:tel th:tha tl:tgl tn:tsn tr:tur ts:tso uk:ukr ur:urd vi:vie xh:xho yo:yor zh:zho zu:zul"
))  # fmt: skip
# Scripts that only languages without lingua's support use: Amharic, Cherokee, Tamazight (Tifinagh).
SCRIPTS = {
    "am": re.compile(r"[\u1200-\u139f\u2d80-\u2ddf\uab00-\uab2f]"),
    "chr": re.compile(r"[\u13a0-\u13ff\uab70-\uabbf]"),
    "zgh": re.compile(r"[\u2d30-\u2d7f]"),
}
CODES = {code: short for short, long in LINGUA.items() for code in (short, long)} | {code: code for code in SCRIPTS}
CODES["amh"] = "am"


# Further pairs of codes, of languages that lingua does not identify.
SAME_LANGUAGE = {**LINGUA, **dict(re.findall(r"(\w+):(\w+)", "am:amh gn:grn ig:ibo ne:npi oc:oci qu:que"))}


def equal_codes(code: str) -> tuple[str, ...]:
    """Returns a language's code and, if it has another of ISO 639-1 and -3, that one ("en": en, eng)."""
    others = [*(long for short, long in SAME_LANGUAGE.items() if short == code)]
    return (code, *others, *(short for short, long in SAME_LANGUAGE.items() if long == code))


def identifiable_code(code: str) -> str | None:
    """Returns the code of an identifiable language, ISO 639-1 if there is one ("pt-BR": pt, "yor": yo), else None."""
    return CODES.get(code.lower().partition("-")[0])
