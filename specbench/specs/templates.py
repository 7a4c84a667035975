"""Sandboxed Jinja templates over `row` and `vars`, in which nothing missing or empty passes silently."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.sandbox import SandboxedEnvironment

from specbench.errors import ConfigError, nearest

NAMES = ("row", "vars")


class Values:
    """A mapping for a template. Without the methods of dict: a column may be called `values` or `items`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def __getitem__(self, key: str) -> Any:
        return self._data[key]


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise UndefinedError("a value is null")
    return value


ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, finalize=_refuse_null)


@lru_cache(maxsize=256)
def _compiled(source: str) -> Template:
    return ENVIRONMENT.from_string(source)


def render(source: str, row: Mapping[str, Any], variables: Mapping[str, Any]) -> str:
    """The text. Raises jinja2.TemplateError or TypeError (a filter on the wrong type) when the row does not fit."""
    return _compiled(source).render(row=Values(row), vars=Values(variables))


def check(source: str, place: str) -> None:
    """Raise ConfigError when the template does not parse or speaks of anything but `row` and `vars`."""
    try:
        _compiled(source)
        unknown = sorted(meta.find_undeclared_variables(ENVIRONMENT.parse(source)) - set(NAMES))
    except TemplateSyntaxError as error:
        raise ConfigError(f"{place}: line {error.lineno} of the template: {error.message}: correct it") from error
    if unknown:
        raise ConfigError(f"{place}: the template has no name '{unknown[0]}': {nearest(unknown[0], NAMES)}")


@lru_cache(maxsize=256)
def used(source: str, name: str) -> frozenset[str]:
    """The keys of `row` or `vars` that the template cannot do without: not those under `is defined` or `default`."""
    tree = ENVIRONMENT.parse(source)
    optional = [node.node for node in tree.find_all(nodes.Test) if node.name in ("defined", "undefined")]
    optional += [node.node for node in tree.find_all(nodes.Filter) if node.name in ("default", "d") and node.node]
    spared = {key for node in optional if (key := _key(node, name))}
    keys = {key for node in tree.find_all((nodes.Getattr, nodes.Getitem)) if (key := _key(node, name))}
    return frozenset(keys - spared)


def _key(node: nodes.Node, name: str) -> str | None:
    """`x` when the node is name.x or name["x"]."""
    if not isinstance(node, (nodes.Getattr, nodes.Getitem)):
        return None
    if not (isinstance(node.node, nodes.Name) and node.node.name == name):
        return None
    if isinstance(node, nodes.Getattr):
        return node.attr
    return str(node.arg.value) if isinstance(node.arg, nodes.Const) else None
