"""Vocabulary bridges: they translate a drafter's tokens into tokens of the target. This module holds the bridge for
equal vocabularies.

The factory of a bridge is (models, sampling, make, *, options) → Drafter.
"""

from collections.abc import Callable

from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES
from specbench.decoding.drafters import Drafter
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.scoring import ScoringModel

MakeDrafter = Callable[[ScoringModel], Drafter]


class VocabularyMismatch(ConfigError):
    """The bridge needs a shared vocabulary, but target and drafter have different ones."""


@BRIDGES.register("shared", same_vocabulary=True)
def shared(models: ModelPair, sampling: Sampling, make: MakeDrafter) -> Drafter:
    """The drafter has the target's vocabulary, so no translation is needed. A drafter with another vocabulary raises
    VocabularyMismatch, which names both sizes."""
    target, draft_model = models.target, models.drafter
    assert draft_model is not None
    ours, theirs = target.vocabulary, draft_model.vocabulary
    if ours != theirs:
        common = len(ours.items() & theirs.items())
        raise VocabularyMismatch(
            f"drafter '{draft_model.name}' ({len(theirs)} tokens) has another vocabulary than target '{target.name}' "
            f"({len(ours)} tokens; {common} in common under the same id)"
        )
    if target.vocab_size != draft_model.vocab_size:
        raise VocabularyMismatch(
            f"drafter '{draft_model.name}' has the tokenizer of target '{target.name}' but gives "
            f"{draft_model.vocab_size} tokens a probability where the target gives {target.vocab_size}"
        )
    return make(draft_model)
