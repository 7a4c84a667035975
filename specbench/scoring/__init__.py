"""Scorers: how an answer is judged. Importing this module registers the built-in ones in SCORERS."""

from collections.abc import Callable

from specbench.scoring import numbers as numbers

Scorer = Callable[[str, str], float]
