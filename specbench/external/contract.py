"""What an external decoder is given, and what it may give back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.decoding.proposal import Step

Counts = Step | Sequence[int]


@dataclass(frozen=True)
class LoadedModel:
    """A transformers model in evaluation mode, on its device and in the run's dtype, with its tokenizer."""

    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class Decoded:
    """The new tokens and, from a decoder that counts, what its target passes did. All is read after the clock stopped.

    `steps`: per target pass (drafted, judged, accepted, emitted), with accepted ≤ judged ≤ drafted ≤ num_draft_tokens
    and emitted ≤ accepted + 1. Either every returned token was emitted by a step (the first pass reads the prompt and
    judges at once), or all but the first were (the prompt is read in a pass of its own).
    `num_target_passes`, the one that reads the prompt included, is asked for only where there are no steps.
    """

    token_ids: Sequence[int]
    steps: Sequence[Counts] | None = None
    num_target_passes: int | None = None
