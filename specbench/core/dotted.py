"""Nested mappings whose values have dotted paths, such as `drafter.temperature`."""

from collections.abc import Mapping
from typing import Any


def flat(data: Mapping[str, object], lists: bool = False, place: str = "") -> dict[str, object]:
    """Returns all values by dotted path, except non-empty mappings. `lists`: lists too, with item numbers as keys."""
    found: dict[str, object] = {}
    for key, value in data.items():
        path = f"{place}.{key}" if place else str(key)
        value = dict(enumerate(value)) if lists and isinstance(value, list) else value
        found |= flat(value, lists, path) if isinstance(value, Mapping) and value else {path: value}
    return found


def get(data: Mapping[str, object], path: str) -> Any:
    """Returns the value at a dotted path. Raises KeyError if there is none."""
    value: Any = data
    for key in path.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(path)
        value = value[key]
    return value


def put(data: Mapping[str, object], path: str, value: Any) -> dict[str, object]:
    """Returns a copy of `data` with a value set at a dotted path. Missing mappings on the path are created."""
    key, _, rest = path.partition(".")
    inner = data.get(key)
    return {**data, key: put(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}


def merge(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Returns a deep merge: mappings are merged, and any other value of `over` replaces the value of `base`."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged
