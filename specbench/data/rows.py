"""The rows of a source in the layout of its task: as they are, or as the task's reader makes them."""

from collections.abc import Callable, Iterator
from typing import Any

from specbench.data.local import Row
from specbench.data.sources import Source
from specbench.errors import ConfigError
from specbench.registry import READERS
from specbench.specs import TaskSpec


def rows_of(task: TaskSpec, source: Source) -> Iterator[tuple[str, Row]]:
    """The rows that the reader makes of each of the source's, with their place; a sample is in the layout already.

    Raises ConfigError naming the place of a row on which the reader fails.
    """
    if task.reader is None or source.kind == "sample":
        yield from source.rows
        return
    read: Callable[[Row], Any] = READERS.get(task.reader)()
    for place, raw in source.rows:
        try:
            made = read(raw)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
        except Exception as error:  # readers meet rows that nobody has seen
            raise ConfigError(
                f"{place}: the reader '{task.reader}' fails: {type(error).__name__}: {error}: the row has the columns "
                f"{', '.join(map(str, raw))}: correct the row, or give the rows in the layout of the task"
            ) from error
        for row in made if isinstance(made, list) else [made]:
            yield place, row
