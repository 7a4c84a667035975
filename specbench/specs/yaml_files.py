"""YAML as specbench reads it: duplicate keys are errors, and only true and false are booleans (no and on are words)."""

from pathlib import Path
from typing import Any

import yaml

from specbench.errors import ConfigError


class Loader(yaml.SafeLoader):
    """YAML 1.1 takes the language code `no` for False; YAML 1.2 does not, and neither does this loader."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Always deep, so that an anchor inside its own value is an error. An error of a value has its line."""
        try:
            if isinstance(node, yaml.ScalarNode):
                node.value.encode()  # "\ud800" is half a character
            value = super().construct_object(node, deep=True)
            if isinstance(value, int):
                str(value)  # 0xfff… may have more digits than Python writes
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:  # int(), date() and the loader's own look-ups raise what they like
            kind = node.tag.rpartition(":")[2]
            problem = f"{str(node.value)[:40]!r} is not a valid {kind}: write a text in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                problem = 'a key must be a word, and a template stands in quotes: "{{ … }}"'
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if key.value in seen:
                problem = f"the key '{key.value}' is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse(text: str, place: str) -> Any:
    """The value of a YAML text. Raises ConfigError naming `place` and the line."""
    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{place}{line}: not valid YAML: {error.problem or error.context}: correct it") from error
    except RecursionError as error:
        raise ConfigError(f"{place}: not valid YAML: nested too deeply: correct it") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: not valid YAML: {error}: correct it") from error


def read(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises ConfigError when it cannot be read, does not parse or holds no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}: check the path and the file") from error
    data = parse(text, str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds no mapping of keys to values: write `name: …` and the other keys")
    return data
