"""Readers: they turn the rows of a published file into the rows of a task. Importing this package registers them."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
