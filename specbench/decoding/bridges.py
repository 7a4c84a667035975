"""Vocabulary bridges: how a drafter's tokens become tokens of the target."""

from typing import Any

from specbench.errors import ConfigError
from specbench.registry import BRIDGES


class VocabularyMismatch(ConfigError):
    """Target and drafter do not share a vocabulary, and the bridge needs that they do."""


@BRIDGES.register("shared")
def shared(target: Any, draft_model: Any, drafter: Any) -> Any:
    """The identity: both models read and write the same token ids.

    Raises VocabularyMismatch, naming both sizes, when the tokenizers' vocabularies differ.
    """
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
    return drafter


shared.same_vocabulary = True  # type: ignore[attr-defined]
