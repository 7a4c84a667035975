"""The decode loop and its parts. Importing this package registers the built-in drafters, rules and bridges."""

from specbench.decoding import tree_rules, verification
from specbench.decoding.bridges import retokenize, string, token_level
from specbench.decoding.drafters import (
    eagle,
    lookahead,
    medusa,
    model,
    model_tree,
    ngram,
    none,
    prompt_lookup,
    synthetic,
    token_recycling,
)

__all__ = [
    "eagle",
    "lookahead",
    "medusa",
    "model",
    "model_tree",
    "ngram",
    "none",
    "prompt_lookup",
    "retokenize",
    "string",
    "synthetic",
    "token_level",
    "token_recycling",
    "tree_rules",
    "verification",
]
