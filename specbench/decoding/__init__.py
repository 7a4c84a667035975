"""The decode loop and its parts. Importing this package registers the built-in drafters, rules and bridges."""

from specbench.decoding import verification
from specbench.decoding import verification as lossy
from specbench.decoding.bridges import retokenize, string, token_level
from specbench.decoding.bridges import token_level as shared
from specbench.decoding.drafters import model, ngram, none, prompt_lookup, synthetic

__all__ = [
    "lossy",
    "model",
    "ngram",
    "none",
    "prompt_lookup",
    "retokenize",
    "shared",
    "string",
    "synthetic",
    "token_level",
    "verification",
]
