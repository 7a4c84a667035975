"""The decode loop and its parts. Importing this package registers the built-in drafters, rules and bridges."""

from specbench.decoding import bridges, verification
from specbench.decoding.drafters import model, none

__all__ = ["bridges", "model", "none", "verification"]
