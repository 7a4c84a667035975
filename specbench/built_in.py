"""The version, the modules that register the built-in components, and what is known of these without importing them."""

from collections.abc import Mapping

__version__ = "0.1.0"

# By the entry point group of their kind, the most used ones first.
BUILT_IN = {
    "specbench.drafters": (
        "specbench.decoding.drafters",
        "specbench.decoding.drafters.retrieval",
        "specbench.decoding.drafters.ngram",
        "specbench.decoding.drafters.synthetic",
        "specbench.decoding.drafters.lookahead",
        "specbench.decoding.drafters.memory",
        "specbench.decoding.drafters.model_tree",
        "specbench.decoding.drafters.heads",
        "specbench.decoding.drafters.self_drafting",
        "specbench.decoding.drafters.cascade",
        "specbench.decoding.drafters.blocks",
    ),
    "specbench.draft_lengths": ("specbench.decoding.draft_length",),
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

PROBS, RAW_PROBS = frozenset({"probs"}), frozenset({"raw_probs"})
# The features (`specbench.core.registry`) of components whose modules import torch. Rows of recorded runs are computed
# from these alone. Features that need code, such as the shape of a tree, are declared with the factory.
FEATURES: dict[str, dict[str, Mapping[str, object]]] = {
    "specbench.drafters": {
        "none": {"family": "nothing drafts", "provides": PROBS},
        "model": {"family": "a draft model", "provides": PROBS | RAW_PROBS, "needs_model": True, "asks_length": True},
        "prompt_lookup": {"family": "earlier texts", "provides": PROBS},
        "retrieval": {"family": "a corpus"},
        "suffix": {"family": "earlier texts", "provides": PROBS},
        "sam": {"family": "earlier texts", "provides": PROBS},
        "ngram_mod": {"family": "earlier texts", "provides": PROBS},
        "ngram": {"family": "a corpus", "provides": PROBS | RAW_PROBS, "asks_length": True},
        "synthetic": {"family": "a draft model", "provides": PROBS, "needs_model": True, "prescribes": "rejection"},
        "lookahead": {"family": "the target itself"},
        "jacobi": {"family": "the target itself", "provides": PROBS},
        "token_recycling": {"family": "the target itself"},
        "model_tree": {"family": "a draft model", "needs_model": True},
        "cascade": {"family": "a draft model", "provides": PROBS, "needs_model": True, "model_replaced": "level"},
        "self_quantized": {"family": "the target itself", "provides": PROBS | RAW_PROBS, "model_option": "checkpoint"},
        "self_skip": {"family": "the target itself", "provides": PROBS | RAW_PROBS},
        "self_window": {"family": "the target itself", "provides": PROBS | RAW_PROBS},
        "eagle": {"family": "a head of the target", "provides": PROBS | RAW_PROBS, "asks_length": True},
        "mtp": {"family": "a head of the target", "provides": PROBS | RAW_PROBS, "asks_length": True},
        "eagle_tree": {"family": "a head of the target"},
        "block": {"family": "a head of the target", "provides": PROBS | RAW_PROBS, "drafts_at_once": True},
        "medusa": {"family": "a head of the target"},
    },
    "specbench.rules": {
        "rejection": {"lossless": True},
        "exact_match": {"lossless": True},
        "recursive_rejection": {"lossless": True},
        "k_seq": {"lossless": True},
        "greedy_multi_draft": {"lossless": True},
        "traversal": {"lossless": True},
        "best_path_block": {"lossless": True},
        "block": {"lossless": True},
        "fuzzy": {"lossless": False},
        "random_accept": {"lossless": False},
        "typical": {"lossless": False},
    },
    "specbench.bridges": {
        "shared": {"same_vocabulary": True},
        "intersection": {},
        "union": {},
        "retokenize": {"removes": RAW_PROBS},
        "string": {"removes": RAW_PROBS},
    },
}
