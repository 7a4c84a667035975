"""specbench: a benchmark harness for speculative decoding of language models."""

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any

    from specbench.api import Method, Model, check, compare, load, run
    from specbench.core.errors import ConfigError, DrafterError
    from specbench.report.display import Results

__all__ = ["ConfigError", "DrafterError", "Method", "Model", "Results", "check", "compare", "load", "run"]

# Modules that register the built-in components, by the entry point group of their kind, the most used ones first.
BUILT_IN = {
    "specbench.drafters": (
        "specbench.decoding.drafters",
        "specbench.decoding.drafters.retrieval",
        "specbench.decoding.drafters.ngram",
        "specbench.decoding.drafters.synthetic",
        "specbench.decoding.drafters.lookahead",
        "specbench.decoding.drafters.model_tree",
        "specbench.decoding.drafters.heads",
    ),
    "specbench.rules": ("specbench.decoding.verification", "specbench.decoding.tree_rules"),
    "specbench.bridges": (
        "specbench.decoding.bridges",
        "specbench.decoding.bridges.token_level",
        "specbench.decoding.bridges.string",
    ),
    "specbench.readers": ("specbench.tasks.readers", "specbench.tasks.readers.documents"),
    "specbench.decoders": ("specbench.integrations.entry", "specbench.integrations.served.decoder"),
    "specbench.scorers": (
        "specbench.tasks.scoring.numbers",
        "specbench.tasks.scoring.latex",
        "specbench.tasks.scoring.choices",
        "specbench.tasks.scoring.code",
        "specbench.tasks.scoring.texts",
    ),
    "specbench.loggers": ("specbench.running.trackers",),
    "specbench.task_sources": ("specbench.integrations.lm_eval.tasks",),
    "specbench.engines": ("specbench.integrations.served.engines",),
}


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
