"""Sandboxed Jinja templates with the variables `row` and `vars`. Missing and null values are errors."""

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, Undefined, UndefinedError, meta, nodes

from specbench.core.errors import ConfigError, nearest
from specbench.specs.template_bounds import BoundedEnvironment, RenderBudget, budget, charge

NAMES = ("row", "vars")
SURROGATE = re.compile("[\ud800-\udfff]")


class Values:
    """A mapping for templates. It has no methods of dict, because a column may be named `values` or `items`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __repr__(self) -> str:
        raise UndefinedError("`row` and `vars` are not texts: write one of their values, such as row.question")


class NullValue(UndefinedError):
    """A template outputs a value that is null or NaN."""


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_empty(value: Any) -> bool:
    """Returns whether a cell is null, NaN, or a text of whitespace only."""
    return _is_null(value) or (isinstance(value, str) and not value.strip())


def _check_output(value: Any) -> Any:
    """Returns a value that a template outputs. Raises UndefinedError for null, NaN and values that are not texts."""
    if _is_null(value):
        raise NullValue("a value is null or NaN")
    if not isinstance(value, Undefined) and (callable(value) or isinstance(value, Iterator)):
        raise UndefinedError(f"{type(value).__name__} is not a text: write a value")
    if isinstance(value, (list, tuple, dict, set, bytes)):
        raise UndefinedError(f"a {type(value).__name__} is not a text: write one of its values")
    charge(len(value) if isinstance(value, str) else 1)
    return value


ENVIRONMENT = BoundedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, finalize=_check_output)


@lru_cache(maxsize=256)
def _compile(source: str) -> Template:
    return ENVIRONMENT.from_string(source)


def render(source: str, row: Mapping[str, Any], variables: Mapping[str, Any]) -> str:
    """Returns the text of a template. Raises TooMuch if it exceeds a limit of `template_bounds`, ValueError if the text
    is not valid Unicode, and for an unsuitable row any exception of an expression, even RecursionError."""
    template = _compile(source)
    token = budget.set(RenderBudget())
    try:
        text = template.render(row=Values(row), vars=Values(variables))
    finally:
        budget.reset(token)
    if SURROGATE.search(text):
        raise ValueError("the text is not valid Unicode (half of a surrogate pair)")
    return text


@lru_cache(maxsize=256)
def _unknown_names(source: str) -> list[str]:
    _compile(source)
    return sorted(meta.find_undeclared_variables(ENVIRONMENT.parse(source)) - set(NAMES))


def check(source: str, place: str) -> None:
    """Raises ConfigError if the template does not compile or uses names other than `row` and `vars`."""
    try:
        unknown = _unknown_names(source)
    except TemplateSyntaxError as error:
        problem = str(error.message).rstrip(".")
        raise ConfigError(f"{place}: line {error.lineno} of the template: {problem}: correct it") from error
    except Exception as error:  # raised by the compilation of the generated Python code
        raise ConfigError(f"{place}: the template cannot be compiled: {error}: simplify it") from error
    if unknown:
        raise ConfigError(f"{place}: the template has no name '{unknown[0]}': {nearest(unknown[0], NAMES)}")


@lru_cache(maxsize=256)
def used(source: str, name: str) -> frozenset[str]:
    """Returns the keys of `row` or `vars` that the template needs. Keys with `is defined` or `default` are optional."""
    tree = ENVIRONMENT.parse(source)
    guarded = [node.node for node in tree.find_all(nodes.Test) if node.name in ("defined", "undefined")]
    guarded += [node.node for node in tree.find_all(nodes.Filter) if node.name in ("default", "d") and node.node]
    optional = {key for node in guarded if (key := _key(node, name))}
    keys = {key for node in tree.find_all((nodes.Getattr, nodes.Getitem)) if (key := _key(node, name))}
    return frozenset(keys - optional)


@lru_cache(maxsize=256)
def always_used(source: str, name: str) -> frozenset[str]:
    """Returns the `used` keys outside of conditions. An empty value of one would leave a gap in the text."""
    tree = ENVIRONMENT.parse(source)
    conditions = tree.find_all((nodes.If, nodes.CondExpr, nodes.And, nodes.Or))
    inside = {id(node) for condition in conditions for node in condition.find_all((nodes.Getattr, nodes.Getitem))}
    outside = [node for node in tree.find_all((nodes.Getattr, nodes.Getitem)) if id(node) not in inside]
    return used(source, name) & {_key(node, name) for node in outside}


def _key(node: nodes.Node, name: str) -> str | None:
    """Returns x if the node is name.x or name["x"], else None."""
    if not isinstance(node, (nodes.Getattr, nodes.Getitem)):
        return None
    if not (isinstance(node.node, nodes.Name) and node.node.name == name):
        return None
    if isinstance(node, nodes.Getattr):
        return node.attr
    return str(node.arg.value) if isinstance(node.arg, nodes.Const) else None
