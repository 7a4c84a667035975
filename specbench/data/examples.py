"""A task's examples: its rows made into prompts."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from specbench.data.local import Row
from specbench.data.sources import open_source
from specbench.errors import ConfigError, nearest
from specbench.registry import READERS
from specbench.specs import TaskSpec, templates


@dataclass(frozen=True)
class Example:
    """One prompt. `index` counts the examples of its subset from 0; `id` is the row's own, else the index."""

    index: int
    id: str
    prompt: str
    reference: str | None


@dataclass(frozen=True)
class TaskData:
    """Examples and where they came from. `revision`: the commit on the hub; for files the digest of their bytes."""

    source: Literal["hub", "local", "sample"]
    location: str
    revision: str | None
    examples: tuple[Example, ...]


def load_examples(
    task: TaskSpec, subset: str, *, data: str | None, use_sample: bool, limit: int | None, num_subsets: int = 1
) -> TaskData:
    """The first `limit` examples of a subset. `data`: "hub", "sample", a folder or a file; None means the bundled
    sample when `use_sample`, else the hub. `num_subsets`: how many subsets the run takes from the same data, so that
    one file without a `subset` column is not measured under several names.

    Raises ConfigError in one line for anything wrong with the data.
    """
    chosen = task.subset(subset)
    source = open_source(task, subset, data or ("sample" if use_sample else "hub"), num_subsets)
    read: Callable[[Row], Any] = READERS.get(chosen.reader)() if chosen.reader else _as_it_is
    rows = ((place, row) for place, raw in source.rows for row in _listed(read(raw)))
    examples = tuple(_example(chosen, index, *pair) for index, pair in enumerate(islice(rows, limit)))
    if not examples:
        raise ConfigError(f"{source.location}: no rows are left of subset '{subset}': check the data and the reader")
    return TaskData(source.kind, source.location, source.revision, examples)


def _as_it_is(row: Row) -> Row:
    return row


def _listed(rows: Any) -> list[Row]:
    return rows if isinstance(rows, list) else [rows]


def _example(chosen: TaskSpec, index: int, place: str, row: Row) -> Example:
    prompt = _render(chosen, "prompt", chosen.prompt, place, row)
    reference = _render(chosen, "reference", chosen.reference, place, row) if chosen.reference else None
    identity = str(index if row.get("id") is None else row["id"])
    if templates.SURROGATE.search(identity):
        raise ConfigError(f"{place}: the id is not valid Unicode (half of a surrogate pair): correct it")
    return Example(index, identity, prompt, reference)


def _render(chosen: TaskSpec, key: str, template: str, place: str, row: Row) -> str:
    """The filled-in template. Raises ConfigError naming file, row and column when the row does not fit."""
    for column in sorted(templates.always_used(template, "row") & set(row)):
        if templates.is_empty(row[column]):
            raise ConfigError(
                f"{place}: column '{column}' is empty, which the {key} needs: fill it in, or write a template that "
                f"asks {{% if row.{column} %}}"
            )
    try:
        text = templates.render(template, row, chosen.vars)
    except Exception as error:  # a template is a program: it may fail in any way
        raise ConfigError(f"{place}: {_misfit(chosen, key, template, row, error)}") from error
    if not text.strip():
        columns = sorted(templates.used(template, "row") & set(row))
        raise ConfigError(f"{place}: the {key} comes out empty: fill in {', '.join(columns)}")
    return text


def _misfit(chosen: TaskSpec, key: str, template: str, row: Row, error: Exception) -> str:
    missing = sorted(name for name in templates.used(template, "row") if row.get(name) is None)
    if not missing:
        reason = ": ".join(filter(None, (type(error).__name__, str(error))))
        return f"the {key} of task '{chosen.name}' fails: {reason}: correct the template or the row"
    if missing[0] in row:
        return f"column '{missing[0]}' is empty, which the {key} needs: fill it in"
    return f"no column '{missing[0]}', which the {key} needs: {nearest(missing[0], map(str, row))}: rename or add it"
