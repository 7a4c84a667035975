"""Registries of components: names mapped to factories of drafters, rules, bridges, decoders, readers, scorers and task
sources, from this package and from plug-ins.

The keyword-only parameters of a factory are the options of the component; their annotations and defaults are the
schema.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, create_model
from pydantic_core import CoreSchema

from specbench.core.errors import ConfigError, nearest

Factory = Callable[..., Any]
MAX_INT = 2**63 - 1  # maximum of every integer in a spec: tensors and files hold no larger ones


class Registry:
    """The registry of one kind of component. `group`: the entry point group of its plug-ins. `home`: the module whose
    import registers the built-in components. It is imported at the first look-up, because it imports torch and this
    module."""

    def __init__(self, kind: str, group: str, home: str | None = None) -> None:
        self.kind = kind
        self.group = group
        self.home = home
        self._builtin: dict[str, Factory] = {}
        self._options: dict[str, tuple[Factory, type[BaseModel]]] = {}

    def register(self, name: str) -> Callable[[Factory], Factory]:
        """Returns a decorator that registers a factory under a name."""

        def add(factory: Factory) -> Factory:
            if name in self._builtin:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._builtin[name] = factory
            return factory

        return add

    @cached_property
    def _plugins(self) -> dict[str, Any]:
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> list[str]:
        self._import_home()
        return sorted({*self._builtin, *self._plugins})

    def _import_home(self) -> None:
        if self.home:
            importlib.import_module(self.home)

    def get(self, name: str) -> Factory:
        """Returns the factory. Raises ConfigError that lists the choices."""
        self._import_home()
        if name in self._builtin:
            return self._builtin[name]
        if name not in self._plugins:
            raise ConfigError(f"unknown {self.kind} '{name}': {nearest(name, self.names())}")
        try:
            factory: Factory = self._plugins[name].load()
        except Exception as error:
            value = self._plugins[name].value
            raise ConfigError(f"plug-in {self.kind} '{name}' ({value}) failed to load: {error}") from error
        return factory

    def options_model(self, name: str) -> type[BaseModel]:
        """Returns the pydantic model of a component's options."""
        factory = self.get(name)
        known = self._options.get(name)
        if known is None or known[0] is not factory:
            self._options[name] = known = (factory, _options_model(name, factory))
        return known[1]

    def complete(self, name: str, options: Mapping[str, Any], place: str = "") -> dict[str, Any]:
        """Returns validated options with defaults filled in. Raises ConfigError that names the key, prefixed by
        `place`."""
        model = self.options_model(name)
        try:
            return model.model_validate(dict(options)).model_dump()
        except ValidationError as error:
            raise ConfigError(first_problem(error, model, place or f"{self.kind} '{name}'")) from error


def _make_strict(schema: Any) -> None:
    for part in schema if isinstance(schema, list | tuple) else ():
        _make_strict(part)
    if not isinstance(schema, dict):
        return
    if schema.get("type") in ("int", "float", "bool"):
        schema["strict"] = True
    if schema.get("type") == "int" and "lt" not in schema:
        schema.setdefault("le", MAX_INT)
    for key, part in schema.items():
        if key not in ("default", "keys_schema", "metadata", "serialization"):
            _make_strict(part)


class StrictModel(BaseModel):
    """A model that does not convert between texts, numbers and booleans, except that an integer is accepted as a float.

    pydantic's own strict mode would also reject lists for tuples.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _make_strict(schema)
        return schema


def _options_model(name: str, factory: Factory) -> type[BaseModel]:
    parameters = inspect.signature(factory, eval_str=True).parameters.values()
    fields: dict[str, Any] = {
        p.name: (p.annotation, ... if p.default is p.empty else p.default)
        for p in parameters
        if p.kind is p.KEYWORD_ONLY
    }
    return create_model(f"{name} options", __base__=_Options, **fields)


class _Options(StrictModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def first_problem(error: ValidationError, model: type[BaseModel], place: str = "", remedy: str = ": correct it") -> str:
    """Returns the first problem of a pydantic error in one line: the path of the key, the problem, and the nearest
    valid choice. If several keys are missing, all are named. `remedy`: appended for a value that is out of range or of
    a wrong type."""
    # An unknown key is reported first, because it is often a misspelt missing key.
    problem = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    path = _path(place, problem["loc"])
    key = str(problem["loc"][-1]) if problem["loc"] else path
    message = problem["msg"].removeprefix("Value error, ")
    message = message.replace("valid tuple", "list").replace("valid dictionary", "mapping")
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key '{key}': {nearest(key, _fields_at(model, problem['loc'][:-1]))}"
    missing = [_path(place, found["loc"]) for found in error.errors() if found["type"] == "missing"]
    if problem["type"] == "missing" and len(missing) > 1:
        return f"{', '.join(missing)}: these keys are missing: add them"
    if problem["type"] == "missing":
        return f"{path}: the key '{key}' is missing: add it"
    value = repr(problem["input"])
    where = f"{path} = {value if len(value) <= 60 else value[:57] + '...'}" if path else "the whole"
    if problem["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        return f"{where}: {nearest(str(problem['input']), choices)}"
    return f"{where}: {message[:1].lower()}{message[1:]}{remedy if problem['type'] != 'value_error' else ''}"


def _path(place: str, location: tuple[int | str, ...]) -> str:
    return ".".join([place] * bool(place) + [str(part) for part in location if part != "[key]"])


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None:  # the index or the key of an entry
            continue
        inner = field.annotation
        models = [t for t in [inner, *get_args(inner)] if isinstance(t, type) and issubclass(t, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


DRAFTERS = Registry("drafter", "specbench.drafters", home="specbench.decoding")
DECODERS = Registry("decoder", "specbench.decoders", home="specbench.integrations.entry")
RULES = Registry("rule", "specbench.rules", home="specbench.decoding")
BRIDGES = Registry("bridge", "specbench.bridges", home="specbench.decoding")
READERS = Registry("reader", "specbench.readers", home="specbench.tasks.readers")
SCORERS = Registry("scorer", "specbench.scorers", home="specbench.tasks.scoring")
TASK_SOURCES = Registry("task source", "specbench.task_sources", home="specbench.integrations.lm_eval.tasks")
