"""specbench: a benchmark harness for speculative decoding of language models."""

# Modules that register the built-in components, by the entry point group of the kind; those used most come first.
BUILT_IN = {
    "specbench.drafters": (
        "specbench.decoding.drafters.none",
        "specbench.decoding.drafters.model",
        "specbench.decoding.drafters.prompt_lookup",
        "specbench.decoding.drafters.ngram",
        "specbench.decoding.drafters.synthetic",
        "specbench.decoding.drafters.lookahead",
        "specbench.decoding.drafters.token_recycling",
        "specbench.decoding.drafters.model_tree",
        "specbench.decoding.drafters.medusa",
        "specbench.decoding.drafters.eagle",
        "specbench.decoding.drafters.retrieval",
    ),
    "specbench.rules": ("specbench.decoding.verification", "specbench.decoding.tree_rules"),
    "specbench.bridges": (
        "specbench.decoding.bridges.token_level",
        "specbench.decoding.bridges.retokenize",
        "specbench.decoding.bridges.string",
    ),
    "specbench.decoders": ("specbench.integrations.entry",),
    "specbench.readers": (
        "specbench.tasks.readers.questions",
        "specbench.tasks.readers.documents",
        "specbench.tasks.readers.programs",
    ),
    "specbench.scorers": (
        "specbench.tasks.scoring.numbers",
        "specbench.tasks.scoring.choices",
        "specbench.tasks.scoring.code",
        "specbench.tasks.scoring.texts",
        "specbench.tasks.scoring.boxed",
    ),
    "specbench.loggers": ("specbench.results.loggers",),
    "specbench.task_sources": ("specbench.integrations.lm_eval.tasks",),
}


def __getattr__(name: str) -> str:
    """`__version__`, read when it is asked for: it takes longer than the start of a sandboxed program."""
    if name != "__version__":
        raise AttributeError(f"module 'specbench' has no attribute '{name}'")
    from importlib.metadata import version

    return version("specbench")
