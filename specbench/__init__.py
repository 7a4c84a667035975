"""specbench: a benchmark harness for speculative decoding of language models."""

from specbench.built_in import __version__

TYPE_CHECKING = False  # typing takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any

    from specbench.api import Method, Model, check, compare, load, run
    from specbench.core.errors import ConfigError, DrafterError
    from specbench.report.display import Results

__all__ = [
    "ConfigError", "DrafterError", "Method", "Model", "Results", "__version__", "check", "compare", "load", "run",
]  # fmt: skip

# The modules of the Python interface. They are imported when one of its names is first used.
INTERFACE = {
    "ConfigError": "specbench.core.errors",
    "DrafterError": "specbench.core.errors",
    "Results": "specbench.report.display",
    **dict.fromkeys(("Method", "Model", "check", "compare", "load", "run"), "specbench.api"),
}


def __getattr__(name: str) -> "Any":
    """Returns an object of the interface."""
    if name not in INTERFACE:
        raise AttributeError(f"module 'specbench' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(INTERFACE[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *INTERFACE]
