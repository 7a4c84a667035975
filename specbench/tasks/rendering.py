"""Templates filled in with rows; what does not fit is told by file, row and column."""

from collections.abc import Iterator
from typing import Any

from specbench.core.errors import ConfigError, nearest
from specbench.specs import templates
from specbench.specs.task import TaskSpec
from specbench.tasks.local_files import Row
from specbench.tasks.scoring.contract import Reference


def turns_of(task: TaskSpec, row: Row, place: str) -> Iterator[Row]:
    """The row once per turn, with `turn` and `turn_index`; the row itself for a task of one turn.

    Raises ConfigError naming `place` when the column of the turns does not list texts.
    """
    if task.turns is None:
        yield row
        return
    turns = row.get(task.turns)
    if task.turns not in row:
        raise ConfigError(
            f"{place}: no column '{task.turns}', which lists the turns: {nearest(task.turns, map(str, row))}: add it"
        )
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise ConfigError(f"{place}: column '{task.turns}' must be a list of texts, one per turn: correct it")
    for number, turn in enumerate(turns):
        yield {**row, "turn": turn, "turn_index": number}


def render(task: TaskSpec, key: str, template: str, place: str, row: Row) -> str:
    """The filled-in template. Raises ConfigError naming file, row and column when the row does not fit."""
    for column in sorted(templates.always_used(template, "row") & set(row)):
        if templates.is_empty(row[column]):
            raise ConfigError(
                f"{place}: column '{column}' is empty, which the {key} needs: fill it in, or write a template that "
                f"asks {{% if row.{column} %}}"
            )
    try:
        text = templates.render(template, row, task.vars)
    except Exception as error:  # a template is a program: it may fail in any way
        raise misfit(task, key, template, place, row, error) from error
    if not text.strip():
        columns = sorted(templates.used(template, "row") & set(row))
        raise ConfigError(f"{place}: the {key} comes out empty: fill in {', '.join(columns)}")
    return text


def misfit(task: TaskSpec, key: str, template: str, place: str, row: Row, error: Exception) -> ConfigError:
    """What is wrong with a row on which a template fails."""
    missing = sorted(name for name in templates.used(template, "row") if row.get(name) is None)
    if not missing:
        reason = ": ".join(filter(None, (type(error).__name__, str(error))))
        return ConfigError(f"{place}: the {key} of task '{task.name}' fails: {reason}: correct the template or the row")
    if missing[0] in row:
        return ConfigError(f"{place}: column '{missing[0]}' is empty, which the {key} needs: fill it in")
    return ConfigError(
        f"{place}: no column '{missing[0]}', which the {key} needs: {nearest(missing[0], map(str, row))}: "
        "rename or add it"
    )


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
