"""Sandboxed Jinja templates with the variables `row` and `vars`. Missing and null values are errors.

Templates come from task files, which may not be trusted. The sandbox denies access to files and to Python's internals.
Time and memory are limited too: every loop, operator, filter and call is charged to a budget before it runs.
"""

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, Undefined, UndefinedError, meta, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from specbench.core.errors import ConfigError, nearest

MAX_SOURCE = 100_000  # characters of a template
MAX_CHARACTERS = 4 * 2**20  # that one rendering produces, including the result
MAX_SECONDS = 2.0  # of one rendering
MAX_GROWTH = 16 * MAX_CHARACTERS  # of one operation, by its arguments: the most that exists for a moment
MAX_NUMBER = 100_000  # as an argument of a filter or method, such as a width
MAX_BITS = 4096  # of an integer

STATEMENTS = (nodes.Output, nodes.For, nodes.If, nodes.Assign, nodes.AssignBlock, nodes.FilterBlock, nodes.With)
FUNCTIONS = ("range", "namespace", "dict")
# The arguments of these filters and methods do not bound the size of their result or their time.
WITHOUT_FILTERS = ("format", "pprint", "striptags", "sum", "tojson", "urlize", "wordwrap")
WITHOUT_METHODS = ("encode", "expandtabs", "format", "format_map", "maketrans", "translate")
TOO_LONG = f"the template's output exceeds {MAX_CHARACTERS:,} characters"


class TooMuch(SecurityError):
    """A template exceeds a bound."""


@dataclass
class RenderBudget:
    """The remaining characters and the deadline of one rendering."""

    left: int = MAX_CHARACTERS
    end: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)


budget: ContextVar[RenderBudget | None] = ContextVar("budget", default=None)


def charge(characters: int) -> None:
    """Charges the current budget. Raises TooMuch if it is exceeded. Does nothing while a template is compiled."""
    if (current := budget.get()) is None:
        return
    current.left -= characters
    if current.left < 0:
        raise TooMuch(TOO_LONG)
    if time.monotonic() > current.end:
        raise TooMuch(f"the template's rendering exceeds {MAX_SECONDS:g} seconds")


def charge_each(values: Iterable[Any], characters: int = 1) -> Iterator[Any]:
    """Yields values and charges for each. `characters`: the literal text that one iteration of a loop writes."""
    for value in values:
        charge(characters)
        yield value


def size_of(value: Any) -> int:
    """Returns the characters of a value and of all that it contains; a container that is in it twice counts twice.
    Raises TooMuch as soon as they exceed the bound of one rendering."""
    size = 0
    stack = [value]
    while stack:
        each = stack.pop()
        size += 1 + (len(each) if isinstance(each, str | bytes | range | dict | list | tuple | set | frozenset) else 0)
        if isinstance(each, dict):
            stack += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            stack += each
        if size + len(stack) > MAX_CHARACTERS:  # each that is left counts at least one
            raise TooMuch(TOO_LONG)
    return size


def charge_result(value: Any) -> Any:
    """Charges for the result of an operation and returns it. An iterator is returned as a list."""
    if isinstance(value, Iterator):
        value = list(charge_each(value))
    charge(size_of(value))
    return value


def bound_growth(name: str, *values: Any) -> None:
    """Raises TooMuch for a filter or a method with these arguments if the product of their sizes, which no result
    exceeds, is too large, and for a large number, such as a width."""
    numbers = [abs(value) for value in values if isinstance(value, int)]
    if max(numbers, default=0) > MAX_NUMBER:
        raise TooMuch(f"the template gives a filter or method a number above {MAX_NUMBER:,}")
    widths = numbers if name == "indent" else []  # of each line
    if math.prod([*map(size_of, values), *widths]) > MAX_GROWTH:
        raise TooMuch(TOO_LONG)


class _AddCharges(NodeTransformer):
    """Adds charging filters to constructs that run or grow without a filter: loops, lists, `~` and slices."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        node = super().generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.For):
            literal = sum(len(text.data) for part in node.body for text in part.find_all(nodes.TemplateData))
            literal += sum(len(part.data) for part in node.body if isinstance(part, nodes.TemplateData))
            node.iter = _filter(node.iter, "_charge_each", nodes.Const(1 + literal))
        if isinstance(node, nodes.Concat):
            return _filter(nodes.List(node.nodes, lineno=node.lineno), "join")
        is_slice = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        is_value = isinstance(node, nodes.List | nodes.Dict) or (isinstance(node, nodes.Tuple) and node.ctx == "load")
        return _filter(node, "_charge_result") if is_slice or is_value else node


def _filter(node: Any, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox without macros, blocks and recursive loops that charges for every operation of a template."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.globals = {name: self.globals[name] for name in FUNCTIONS}
        self.filters = {
            name: _with_charge(name, filter_) for name, filter_ in self.filters.items() if name not in WITHOUT_FILTERS
        }
        # They take the context, so that Jinja does not evaluate them when it compiles a template.
        self.filters["_charge_each"] = pass_context(lambda _, values, characters: charge_each(values, characters))
        self.filters["_charge_result"] = pass_context(lambda _, value: charge_result(value))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise TemplateSyntaxError(f"it has more than {MAX_SOURCE:,} characters", 1)
        tree = super()._parse(source, name, filename)
        for node in tree.find_all(nodes.Stmt):
            if not isinstance(node, STATEMENTS) or getattr(node, "recursive", False):
                kind = "a recursive loop" if isinstance(node, nodes.For) else type(node).__name__.lower()
                raise TemplateSyntaxError(f"{kind} is not allowed in a template", node.lineno)
        return tree

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:  # fmt: skip
        return super()._generate(_AddCharges().visit(source), name, filename, defer_init)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_known = not isinstance(obj, int | float | bytes) and not (isinstance(obj, str) and attr in WITHOUT_METHODS)
        return is_known and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Returns None: `format` is not allowed, because it does not bound the width of a field."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str | bytes):
            raise TooMuch("% is not allowed with a text: write the values with {{ }}, or join them with ~")
        if isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise TooMuch(f"the template makes a number of more than {MAX_BITS} bits")
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                charge(len(value) * times if isinstance(value, Sized) and isinstance(times, int) else 1)
        return charge_result(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        receiver = getattr(obj, "__self__", None)
        if isinstance(receiver, str):
            args = tuple(charge_result(value) if isinstance(value, Iterator) else value for value in args)
            bound_growth(obj.__name__, receiver, *args, *kwargs.values())
        result = super().call(context, obj, *args, **kwargs)
        return result if isinstance(result, range) else charge_result(result)


def _with_charge(name: str, filter_: Any) -> Any:
    """Returns a filter that is bounded before and charged after the call. It takes the context, so that Jinja does not
    evaluate it when it compiles a template."""
    kind = getattr(getattr(filter_, "jinja_pass_arg", None), "name", "")

    @pass_context
    def charging(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, Iterator) or (name == "sort" and isinstance(value, str)):  # which takes long
            value = charge_result(iter(value))
        bound_growth(name, value, *args, *kwargs.values())
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        return charge_result(filter_(*([first[kind]] if kind else []), value, *args, **kwargs))

    return charging


NAMES = ("row", "vars")
SURROGATE = re.compile("[\ud800-\udfff]")


class Values:
    """A mapping for templates. It has no methods of dict, because a column may be named `values` or `items`."""

    def __init__(self, data: Mapping[str, object]) -> None:
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


def render(source: str, row: Mapping[str, object], variables: Mapping[str, object]) -> str:
    """Returns the text of a template. Raises TooMuch if it exceeds a limit, ValueError if the text is not valid
    Unicode, and for an unsuitable row any exception of an expression, even RecursionError."""
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
    guarded: list[nodes.Node | None] = [
        node.node for node in tree.find_all(nodes.Test) if node.name in ("defined", "undefined")
    ]
    guarded += [node.node for node in tree.find_all(nodes.Filter) if node.name in ("default", "d")]
    return frozenset(_keys(tree.find_all((nodes.Getattr, nodes.Getitem)), name) - _keys(guarded, name))


@lru_cache(maxsize=256)
def always_used(source: str, name: str) -> frozenset[str]:
    """Returns the `used` keys outside of conditions. An empty value of one would leave a gap in the text."""
    tree = ENVIRONMENT.parse(source)
    conditions = tree.find_all((nodes.If, nodes.CondExpr, nodes.And, nodes.Or))
    inside = {id(node) for condition in conditions for node in condition.find_all((nodes.Getattr, nodes.Getitem))}
    outside = [node for node in tree.find_all((nodes.Getattr, nodes.Getitem)) if id(node) not in inside]
    return used(source, name) & _keys(outside, name)


def _keys(found: Iterable[nodes.Node | None], name: str) -> set[str]:
    """Returns x for each node that is name.x or name["x"]."""
    keys = set()
    for node in found:
        if isinstance(node, nodes.Getattr) and node.node == nodes.Name(name, "load"):
            keys.add(node.attr)
        if isinstance(node, nodes.Getitem) and node.node == nodes.Name(name, "load"):
            keys |= {str(node.arg.value)} if isinstance(node.arg, nodes.Const) else set()
    return keys
