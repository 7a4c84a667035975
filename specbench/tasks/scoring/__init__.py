"""Scorers: they judge an answer. Importing this package registers the built-in ones in SCORERS."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
