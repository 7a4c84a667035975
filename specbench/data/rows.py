"""The rows of a source in the layout of its task: as they are, or as the task's reader makes them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from specbench.data.local import Row
from specbench.data.sources import Source
from specbench.errors import ConfigError
from specbench.registry import READERS
from specbench.specs import TaskSpec

Join = Callable[[Row, Row], Row | None]


def rows_of(task: TaskSpec, source: Source) -> Iterator[tuple[str, Row]]:
    """The rows that the reader makes of each of the source's, with their place; a sample is in the layout already.

    A reader may have `join(row, next) -> Row | None`: what two rows in succession are together, None where they are
    two. Raises ConfigError naming the place of a row on which the reader fails.
    """
    if task.reader is None or source.kind == "sample":
        yield from source.rows
        return
    read: Callable[[Row], Any] = READERS.get(task.reader)()
    join: Join | None = getattr(read, "join", None)
    for place, raw in _joined(task, source.rows, join) if join else source.rows:
        with _naming(task, place, raw):
            made = read(raw)
        for row in made if isinstance(made, list) else [made]:
            yield place, row


def _joined(task: TaskSpec, rows: Iterable[tuple[str, Row]], join: Join) -> Iterator[tuple[str, Row]]:
    """The rows, those that belong together as one, with the place of the first; one row is read ahead."""
    held: tuple[str, Row] | None = None
    for place, row in rows:
        if held is None:
            held = place, row
            continue
        with _naming(task, place, row):
            together = join(held[1], row)
        if together is None:
            yield held
        held = (place, row) if together is None else (held[0], together)
    if held is not None:
        yield held


@contextmanager
def _naming(task: TaskSpec, place: str, row: Row) -> Iterator[None]:
    """Whatever the reader raises ends in one line with the row's place."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    except Exception as error:  # readers meet rows that nobody has seen
        raise ConfigError(
            f"{place}: the reader '{task.reader}' fails: {type(error).__name__}: {error}: the row has the columns "
            f"{', '.join(map(str, row))}: correct the row, or give the rows in the layout of the task"
        ) from error
