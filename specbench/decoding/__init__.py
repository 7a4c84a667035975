"""The decode loop and its parts. Importing this package registers the built-in drafters, rules and bridges."""

from specbench.decoding import lossy, verification
from specbench.decoding.bridges import retokenize, shared, token_level
from specbench.decoding.drafters import model, none

__all__ = ["lossy", "model", "none", "retokenize", "shared", "token_level", "verification"]
