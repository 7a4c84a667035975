"""The identity: both models read and write the same token ids."""

from specbench.decoding.bridges import MakeDrafter, VocabularyMismatch, bridge
from specbench.decoding.drafters import Drafter
from specbench.decoding.sampling import Sampling
from specbench.models.pair import ModelPair


@bridge("shared", same_vocabulary=True)
def shared(models: ModelPair, sampling: Sampling, make: MakeDrafter) -> Drafter:
    """The drafter's tokens are the target's: nothing is translated. A drafter with another vocabulary is refused
    (VocabularyMismatch names both sizes)."""
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
