"""Checks of input by pydantic models, and the one way from pydantic's errors to lines for a user."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from specbench.core.errors import ConfigError, nearest

MAX_INT = 2**63 - 1  # maximum of integers in a spec, since tensors and files hold no larger ones


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
    """A model that does not convert between texts, numbers and booleans, except integers to floats.

    pydantic's strict mode would also reject lists for tuples.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _make_strict(schema)
        return schema


@contextmanager
def lines_for_user(model: type[BaseModel], prefix: str = "", *, place: str = "", remedy: str = "") -> Iterator[None]:
    """Raises ConfigError for the errors of the block, which validates data with a model.

    The first problem is its message; its `others` are the further ones. `prefix`: begins each line, such as
    "methods/my.yaml: ". `place`: the dotted path of the data, to which the path of the key is added. `remedy`: what the
    user can do, for data that no user writes by hand; by default each line says how to correct the key.
    """
    try:
        yield
    except ValidationError as error:
        first, *others = (prefix + problem for problem in _problems(error, model, place, remedy))
        raise ConfigError(first, others) from error
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def collected(error: ConfigError) -> PydanticCustomError:
    """Returns an error that a validator raises so that pydantic collects it with the other problems of a file."""
    return PydanticCustomError(CONFIG_ERROR, "{problem}", {"problem": str(error)})


CONFIG_ERROR = "config_error"  # type of a pydantic problem whose message is a ConfigError's
PYDANTIC_PARTS = ("[key]", "constrained-int", "constrained-float")  # parts of a location that are not the user's keys


def _problems(error: ValidationError, model: type[BaseModel], place: str, remedy: str) -> list[str]:
    # Unknown keys come first, because they are often misspelt missing keys.
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    missing = [_path(place, problem["loc"]) for problem in problems if problem["type"] == "missing"]
    all_missing = f"{', '.join(missing)}: these keys are missing: {remedy or 'add them'}" if len(missing) > 1 else None
    return list(dict.fromkeys(
        all_missing if all_missing and problem["type"] == "missing" else _problem(problem, model, place, remedy)
        for problem in problems
    ))  # fmt: skip


def _problem(problem: ErrorDetails, model: type[BaseModel], place: str, remedy: str) -> str:
    if problem["type"] == CONFIG_ERROR:
        return problem["msg"]
    path = _path(place, problem["loc"])
    key = str(problem["loc"][-1]) if problem["loc"] else path
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key '{key}': {nearest(key, _fields_at(model, problem['loc'][:-1]), remedy)}"
    if problem["type"] == "missing":
        return f"{path}: the key '{key}' is missing: {remedy or 'add it'}"
    value = repr(problem["input"])
    where = f"{path} = {value if len(value) <= 60 else value[:57] + '...'}" if path else "the whole input"
    if problem["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        return f"{where}: {nearest(str(problem['input']), choices)}" + (f": {remedy}" if remedy else "")
    message = problem["msg"].removeprefix("Value error, ")
    message = message.replace("valid tuple", "list").replace("valid dictionary", "mapping")
    default = "" if problem["type"] == "value_error" else "correct it"  # a validator's own message has the remedy
    end = f": {remedy or default}" if remedy or default else ""
    return f"{where}: {message[:1].lower()}{message[1:]}{end}"


WANTED = {  # what to give, by the type of a pydantic problem with a single text
    "int_parsing": "an integer",
    "int_parsing_size": "an integer with fewer digits",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}


def remedy_for_text(error: ValidationError) -> str:
    """Returns what to give instead of the text of an option or an argument."""
    problem = error.errors()[0]
    if problem["type"] not in WANTED:
        return f"{problem['msg'][:1].lower()}{problem['msg'][1:]}: correct it"
    return f"give {WANTED[problem['type']].format(**problem.get('ctx', {}))}"


def _path(place: str, location: tuple[int | str, ...]) -> str:
    parts = [str(part) for part in location if part not in PYDANTIC_PARTS and not str(part).endswith(("Spec", "Spec]"))]
    return ".".join([place] * bool(place) + parts)


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None:  # an index, or a key that the user chose
            continue
        inner = field.annotation
        models = [t for t in [inner, *get_args(inner)] if isinstance(t, type) and issubclass(t, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)
