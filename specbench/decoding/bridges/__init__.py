"""Vocabulary bridges: they translate a drafter's tokens into tokens of the target."""

from collections.abc import Callable

from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES, Factory
from specbench.decoding.drafters import Drafter
from specbench.models.scoring import ScoringModel

MakeDrafter = Callable[[ScoringModel], Drafter]


class VocabularyMismatch(ConfigError):
    """The bridge needs a shared vocabulary, but target and drafter have different ones."""


def bridge(
    name: str, *, same_vocabulary: bool = False, removes: frozenset[str] = frozenset()
) -> Callable[[Factory], Factory]:
    """Registers a bridge factory, (models, sampling, make, *, options) → Drafter, for the composition check.

    `same_vocabulary` is true if the bridge needs equal vocabularies; `removes` lists the entries of a drafter's
    `provides` that are not available through the bridge.
    """

    def add(factory: Factory) -> Factory:
        factory.same_vocabulary = same_vocabulary  # type: ignore[attr-defined]
        factory.removes = removes  # type: ignore[attr-defined]
        return BRIDGES.register(name)(factory)

    return add
