"""Vocabulary bridges: they translate a drafter's tokens into tokens of the target.

The factory of a bridge is (models, sampling, make, *, options) → Drafter.
"""

from collections.abc import Callable

from specbench.core.errors import ConfigError
from specbench.decoding.drafters import Drafter
from specbench.models.scoring import ScoringModel

MakeDrafter = Callable[[ScoringModel], Drafter]


class VocabularyMismatch(ConfigError):
    """The bridge needs a shared vocabulary, but target and drafter have different ones."""
