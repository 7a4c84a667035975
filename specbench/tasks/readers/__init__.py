"""Readers: they turn the rows of a published file into the rows of a task."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from specbench.core.registry import READERS
from specbench.tasks.local_files import Row

Read = TypeVar("Read", bound=Callable[[Row], Row | list[Row]])


def row_reader(name: str) -> Callable[[Read], Read]:
    """Registers a function of one row as a reader. The function returns a row, or a list of any number of rows."""

    def register(read: Read) -> Read:
        def factory() -> Read:
            return read

        factory.__doc__ = read.func.__doc__ if isinstance(read, partial) else read.__doc__
        READERS.register(name)(factory)
        return read

    return register
