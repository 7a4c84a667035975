"""Nested mappings addressed by dotted paths, as in `verification.threshold`."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(data: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """The dotted paths of all values that are not (filled) mappings themselves."""
    for key, value in data.items():
        path = f"{place}.{key}" if place else str(key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path


def get(data: Mapping[str, Any], path: str) -> Any:
    """The value at a path. Raises KeyError when there is none."""
    value: Any = data
    for key in path.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(path)
        value = value[key]
    return value


def put(data: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `data` with the value set at a path; mappings on the way are made where they are missing."""
    key, _, rest = path.partition(".")
    inner = data.get(key)
    return {**data, key: put(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A deep merge: mappings are merged, anything else of `over` replaces what `base` has."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged
