"""Plug-ins in tests."""

import importlib

from specbench.cli.help.method import known_methods
from specbench.core import registry as registries
from specbench.specs import catalogue


def forget_plugins():
    """Registries and the catalogue look again for what is installed."""
    importlib.invalidate_caches()
    catalogue._plugin_folders.cache_clear()
    known_methods.cache_clear()
    for registry in (each for each in vars(registries).values() if isinstance(each, registries.Registry)):
        vars(registry).pop("plugins", None)
