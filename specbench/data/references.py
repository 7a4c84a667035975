"""The right answers of a row; a row may have none, and is then counted instead of judged."""

from typing import Any

from specbench.data.local import Row
from specbench.data.rendering import misfit
from specbench.errors import ConfigError, nearest
from specbench.scoring.contract import Reference
from specbench.specs import TaskSpec, templates


def reference_of(task: TaskSpec, row: Row, place: str) -> Reference | None:
    """The reference of one turn: a text, texts by name, or a list of texts any of which is right. None where the row
    has none: the value is null, NaN, blank, or an empty list.

    Raises ConfigError naming `place` when a column is missing or holds something else.
    """
    if task.references:
        return _listed(task.references, row, place)
    parts = {key: _rendered(task, key, template, row, place) for key, template in task.reference_templates().items()}
    if not parts or None in parts.values() or not any(text and text.strip() for text in parts.values()):
        return None
    if isinstance(task.reference, str):
        return parts["reference"]
    return {key.removeprefix("reference."): text for key, text in parts.items() if text is not None}


def _rendered(task: TaskSpec, key: str, template: str, row: Row, place: str) -> str | None:
    """The filled-in template; None when a value that it always needs is empty."""
    needed = templates.always_used(template, "row") & set(row)
    if any(templates.is_empty(row[column]) or row[column] == [] for column in needed):
        return None
    try:
        return templates.render(template, row, task.vars)
    except templates.NullValue:
        return None
    except Exception as error:  # a template is a program: it may fail in any way
        raise misfit(task, key, template, place, row, error) from error


def _listed(column: str, row: Row, place: str) -> list[str] | None:
    """The texts of the column; with several turns, those of the turn, if there are any."""
    if column not in row:
        raise ConfigError(
            f"{place}: no column '{column}', which lists the references: {nearest(column, map(str, row))}: add it"
        )
    value = row[column]
    if "turn_index" in row and isinstance(value, list):
        value = value[row["turn_index"]] if row["turn_index"] < len(value) else None
    values = value if isinstance(value, list) else [value]
    if not all(templates.is_empty(one) or _is_plain(one) for one in values):
        raise ConfigError(f"{place}: column '{column}' must be a list of texts: correct it")
    return [str(one) for one in values if not templates.is_empty(one)] or None


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)
