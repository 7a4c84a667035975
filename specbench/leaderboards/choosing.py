"""Which rows of board files are shown: by their fields, and by their subset."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.errors import ConfigError, nearest
from specbench.fairness.runs import method_name
from specbench.results.cells import short
from specbench.results.row import Row

VERSIONED = ("task", "method")  # also by their bare names
LEFT_OUT = ("metrics", "format")


def filtered(rows: Sequence[Row], filters: Sequence[str]) -> list[Row]:
    """The rows in which every KEY=VALUE holds; keys are fields, dotted where they have parts, as the file has them.

    Raises ConfigError for an unknown key, and for a value that no row has.
    """
    chosen = list(rows)
    for text in filters:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--filter {text}: write it as KEY=VALUE, such as --filter method=sd")
        known = dict.fromkeys(name for row in rows for name in leaves(row))
        if key not in known:
            raise ConfigError(f"--filter {text}: no row has '{key}': {nearest(key, known)}")
        found = [row for row in chosen if value in names_of(row, key)]
        if not found:
            values = dict.fromkeys(str(leaves(row)[key]) for row in chosen if key in leaves(row))
            raise ConfigError(f"--filter {text}: no row has this value: {nearest(value, values)}")
        chosen = found
    return chosen


def known_method(text: str, rows: Sequence[Row], method: str) -> None:
    """Raise ConfigError where no row is of a method; `text`: as the rows were named."""
    methods = list(dict.fromkeys(map(method_name, rows)))
    if method not in methods:
        raise ConfigError(f"{text}: has no rows of method '{method}': {nearest(method, methods)}")


def names_of(row: Row, key: str) -> tuple[str, ...]:
    """What a field may be called: its value; of tasks and methods also the name alone, and with its version."""
    value = str(leaves(row).get(key))
    return (value, short(value), short(value).partition("@")[0]) if key in VERSIONED else (value,)


def leaves(row: Row) -> dict[str, Any]:
    """Every field that is not a metric, dotted where it has parts; null and true as JSON has them."""
    return _leaves(row.model_dump(mode="json", exclude=set(LEFT_OUT)), "")


def _leaves(value: Any, prefix: str) -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        found: dict[str, Any] = {}
        for key, part in value.items():
            found |= _leaves(part, f"{prefix}.{key}" if prefix else str(key))
        return found
    if value is None or isinstance(value, bool):
        return {prefix: json.dumps(value)}
    return {prefix: value}


def of_subsets(rows: Sequence[Row], subsets: Sequence[str]) -> list[Row]:
    """The rows of these subsets; where none is named those over all subsets, and of a task's only one."""
    if subsets:
        known = dict.fromkeys(row.subset for row in rows)
        for name in subsets:
            if name not in known:
                raise ConfigError(f"--subset {name}: no row has it: {nearest(name, known)}")
        return [row for row in rows if row.subset in subsets]
    whole = {(row.task, row.target) for row in rows if row.subset == "all"}
    return [row for row in rows if row.subset == "all" or (row.task, row.target) not in whole]
