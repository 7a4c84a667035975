"""Vocabulary bridges: how a drafter's tokens become tokens of the target."""

from collections.abc import Callable

from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES, Factory
from specbench.decoding.drafters import Drafter
from specbench.decoding.drafters.model import ScoringModel

MakeDrafter = Callable[[ScoringModel], Drafter]


class VocabularyMismatch(ConfigError):
    """Target and drafter do not share a vocabulary, and the bridge needs that they do."""


def bridge(
    name: str, *, same_vocabulary: bool = False, removes: frozenset[str] = frozenset()
) -> Callable[[Factory], Factory]:
    """Register a bridge factory, (models, sampling, make, *, options) → Drafter, with what the composition check needs
    to know: whether it needs equal vocabularies, and what of a drafter's `provides` is lost on the way."""

    def add(factory: Factory) -> Factory:
        factory.same_vocabulary = same_vocabulary  # type: ignore[attr-defined]
        factory.removes = removes  # type: ignore[attr-defined]
        return BRIDGES.register(name)(factory)

    return add
