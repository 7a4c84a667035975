"""scipy.special, imported when a function of it is first called: it takes as long to import as the rest of a command
that shows rows, whose intervals are computed already."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("scipy.special"), name)
