"""YAML parsing. Duplicate keys are errors, only true and false are booleans (no and on are strings), and the size is
bounded: every alias counts as a copy of its anchor."""

import os
import re
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from specbench.core import bounded
from specbench.core.errors import ConfigError

MAX_BYTES = 2**20  # of a file
MAX_NODES = 20_000  # keys, values, lists and mappings
MAX_CHARACTERS = 4 * 2**20  # of all keys and values
MAX_TAG = 100  # characters; %TAG can expand few to many
MAX_CACHED = 2**16  # characters of a text whose value is cached
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class Size(NamedTuple):
    """The size of a node with all its descendants, aliases expanded."""

    nodes: int
    characters: int
    depth: int


class Loader(yaml.SafeLoader):
    """A safe loader with bounds. As in YAML 1.2, the language code `no` is not False."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[int, Size] = {}  # by id of node; all nodes live as long as the root
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Returns a node. Raises ComposerError if it exceeds a bound. An alias has the size of its anchor."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if len(getattr(event, "tag", None) or "") > MAX_TAG:
            problem = f"a tag of more than {MAX_TAG} characters"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._depth += 1
        self._check(Size(len(self._sizes), 0, self._depth), event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            size = self._sizes.get(id(node)) or _size_of(node, self._sizes)
            self._check(size._replace(depth=self._depth + size.depth), event)
            self._sizes[id(node)] = size
        return node

    def _check(self, size: Size, event: Any) -> None:
        bounds = (MAX_NODES, "keys and values"), (MAX_CHARACTERS, "characters"), (bounded.MAX_DEPTH, "levels of depth")
        for value, (limit, unit) in zip(size, bounds, strict=True):
            if value > limit:
                problem = f"exceeds {limit:,} {unit}, aliases expanded"
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Always constructs deeply, so that an anchor inside its own value is an error. Errors have a line number."""
        try:
            if isinstance(node, yaml.ScalarNode):
                node.value.encode()  # raises for an unpaired surrogate such as "\ud800"
                if "\0" in node.value:
                    problem = "a NUL character, which no name and no path can have"
                    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
                if node.tag in NUMBERS and len(node.value) > bounded.MAX_DIGITS:
                    raise ValueError("1:1:1:… takes time that grows with the square of its length")
            value = super().construct_object(node, deep=True)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:  # int(), date() and the loader's look-ups raise various types
            kind = node.tag.rpartition(":")[2]
            problem = f"{str(node.value)[:40]!r} is not a valid {kind}: write a text in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                problem = 'a key must be a word, and a template must be in quotes: "{{ … }}"'
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if key.value in seen:
                problem = f"the key '{key.value}' occurs twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(  # YAML 1.1 reads 1e-4 and inf as strings
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$|[-+]?inf$"), list("-+0123456789i")
)


def _size_of(node: yaml.Node, sizes: dict[int, Size]) -> Size:
    """Returns the size of a node from its children's sizes. A node inside itself counts as 0; it is refused later."""
    if isinstance(node, yaml.ScalarNode):
        return Size(1, len(node.value), 1)
    children = [child for pair in node.value for child in (pair if isinstance(pair, tuple) else (pair,))]
    inside = [sizes[id(child)] for child in children if id(child) in sizes]
    return Size(
        1 + sum(size.nodes for size in inside),
        sum(size.characters for size in inside),
        1 + max((size.depth for size in inside), default=0),
    )


def parse(text: str, place: str) -> Any:
    """Returns the value of a YAML text. Raises ConfigError with `place`, the line, and a bound that is exceeded."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{place}: exceeds {MAX_BYTES:,} characters: shorten it")
    try:
        return deepcopy(_load_cached(text)) if len(text) <= MAX_CACHED else yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{place}{line}: not valid YAML: {error.problem or error.context}: correct it") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: not valid YAML: {error}: correct it") from error


@lru_cache(maxsize=256)
def _load_cached(text: str) -> Any:
    """Returns the value of a short text. A command reads a method's file up to a hundred times."""
    return yaml.load(text, Loader)


def read(path: Path) -> dict[str, Any]:
    """Returns the mapping in a file. Raises ConfigError if the file cannot be read or parsed, or is not a mapping."""
    return parse_mapping(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Returns the text of a YAML file. Raises ConfigError if it cannot be read or is of another kind."""
    if os.path.isdir(path):
        raise ConfigError(f"{path}: this is a folder, not a YAML file: give the path of the file")
    if path.suffix == ".jsonl" and os.path.isfile(path):
        raise ConfigError(f"{path}: this is a JSON lines file, not YAML: give a task's rows to `specbench run --data`")
    return bounded.read_text(path, "check the path and the file", MAX_BYTES)


def parse_mapping(text: str, place: str) -> dict[str, Any]:
    """Returns the mapping that a YAML text holds. Raises ConfigError if it cannot be parsed or is not a mapping."""
    data = parse(text, place)
    if not isinstance(data, dict):
        raise ConfigError(f"{place}: is not a mapping of keys to values: write `name: …` and the other keys")
    return data
