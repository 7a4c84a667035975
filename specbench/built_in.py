"""The version, and the modules that register the built-in components."""

__version__ = "0.1.0"

# By the entry point group of their kind, the most used ones first.
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
    "specbench.decoders": ("specbench.integrations.external", "specbench.integrations.served.decoder"),
    "specbench.scorers": (
        "specbench.tasks.scoring.numbers",
        "specbench.tasks.scoring.latex",
        "specbench.tasks.scoring.choices",
        "specbench.tasks.scoring.code",
        "specbench.tasks.scoring.texts",
    ),
    "specbench.loggers": ("specbench.running.events",),
    "specbench.task_sources": ("specbench.integrations.lm_eval.tasks",),
    "specbench.engines": ("specbench.integrations.served.engines",),
}
