"""What is wrong with a value of a line, in words for a user instead of those of msgspec and Python."""

import json
import re
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import msgspec

from specbench.core.errors import nearest
from specbench.records.columns import Floats, Ints, PassTimes, Steps

LARGEST = 2**31 - 1  # integer of a column
NAMES = {"bool": "true", "int": "an integer", "float": "a number", "str": "a text", "array": "a list",
         "object": "a mapping", "null": "null"}  # fmt: skip
BOUNDS = {">=": "from", ">": "above", "<=": "up to", "<": "below"}
EXPECTED = re.compile(r"Expected `([^`]+)`(?: of length (\d+))?(?: ([<>]=?) ([-+.e\d]+))?")
STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def _is_integer(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and least <= value <= LARGEST


def _is_step(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 4 and all(_is_integer(each, -LARGEST) for each in value)


def _is_pass(value: object) -> bool:
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    return is_pair and _is_integer(value[0]) and isinstance(value[1], int | float) and value[1] >= 0  # type: ignore[index]


ENTRIES: dict[type[Any], tuple[Callable[[Any], bool], str]] = {  # of columns: whether one fits, and what it is
    Ints: (_is_integer, f"an integer from 0 to {LARGEST}"),
    Floats: (lambda value: value is None or isinstance(value, int | float), "a number or null"),
    Steps: (_is_step, "a list of 4 integers: drafted, verified, accepted and emitted tokens"),
    PassTimes: (_is_pass, "a list of a query length (an integer from 0) and seconds (a number from 0)"),
}


def shown(value: object) -> str:
    """Returns a value as it is in the file, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def column_problem(kind: type[Any], values: object) -> str:
    """Returns the first wrong entry of a column, to follow the column's name: "[1] = -2: is not an integer from 0"."""
    if not isinstance(values, list | tuple):
        return f" = {shown(values)}: is not a list"
    fits, wanted = ENTRIES[kind]
    wrong = (f"[{number}] = {shown(value)}: is not {wanted}" for number, value in enumerate(values) if not fits(value))
    return next(wrong, ": is too large")


def problem(error: ValueError, whole: dict[str, Any], kind: Any, place: str) -> str:
    """Returns an error of msgspec's as place, value and what the value would have to be.

    `whole`: the values that were converted to `kind`; `place`: their own place, such as methods.sd, or "".
    """
    message, _, path = str(error).partition(" - at `$")
    steps = _steps(whole, kind, path.rstrip("`"))
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    where = f"{place}{name}" if place else name.lstrip(".")
    if (missing := message.removeprefix("Object missing required field `")) != message:
        return f"{where}.{missing.rstrip('`')}: is missing".lstrip(".")
    if message.startswith(("[", " = ", ": ")):  # column_problem
        return f"{where}{message}"
    value: Any = whole
    for step in steps:
        value = value[step]
    if message.startswith("Invalid enum value "):
        return f"{where} = {shown(value)}: {nearest(str(value), _choices(kind, steps))}"
    if expected := EXPECTED.match(message):
        return f"{where} = {shown(value)}: is not {_noun(expected)}"
    return f"{where}: {message}" if where else message


def column(kind: type[Any], value: Any) -> Any:
    """Returns a column of a decoded list. Raises ValueError for one of other values."""
    try:
        return kind.of(value) if issubclass(kind, Ints | Floats) else kind(value)
    except (TypeError, OverflowError, ValueError) as error:
        raise ValueError(column_problem(kind, value)) from error


def _steps(whole: dict[str, Any], kind: Any, path: str) -> list[str | int]:
    """Returns the keys and indices of a path, in which msgspec writes the keys of mappings as [...]."""
    steps: list[str | int] = []
    start = ""
    for found in STEP.finditer(path):
        name, index = found.groups()
        start += found[0]
        steps.append(_wrong_key(whole, kind, steps, start) if index == "..." else name or int(index))
    return steps


def _wrong_key(whole: dict[str, Any], kind: Any, steps: list[str | int], path: str) -> str:
    """Returns the first key at `steps` whose value msgspec refuses at `path`."""
    given: Any = whole
    for step in steps:
        given = given[step]
    for key, part in given.items():
        try:
            msgspec.convert(_with(whole, steps, {key: part}), kind, dec_hook=column)
        except ValueError as error:
            if f"`${path}" in str(error):
                break
    return str(key)


def _with(whole: Any, steps: list[str | int], part: object) -> Any:
    """Returns a copy of lists and mappings with another part at `steps`."""
    if not steps:
        return part
    copied = whole.copy()
    copied[steps[0]] = _with(whole[steps[0]], steps[1:], part)
    return copied


def _choices(kind: Any, steps: list[str | int]) -> list[str]:
    """Returns the words that are allowed at `steps` of a value of `kind`."""
    for step in steps:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            kind = next(each.type for each in msgspec.structs.fields(kind) if each.encode_name == step)
            structs = (each for each in get_args(kind) if isinstance(each, type) and issubclass(each, msgspec.Struct))
            kind = next(structs, kind)
    return [word for each in (kind, *get_args(kind)) if get_origin(each) is Literal for word in get_args(each)]


def _noun(expected: re.Match[str]) -> str:
    """Returns what msgspec expects: "a number from 0 or null"."""
    kinds, length, sign, bound = expected.groups()
    names = kinds.split(" | ")
    nouns = [NAMES.get(name, name) for name in names if not (name == "int" and "float" in names)]
    nouns = ["true", "false", *(noun for noun in nouns if noun != "true")] if "bool" in names else nouns
    text = " or ".join(filter(None, (", ".join(nouns[:-1]), nouns[-1])))
    text += f" of {length} values" if length else ""
    return f"{text} {BOUNDS[sign]} {float(bound):g}" if sign else text
