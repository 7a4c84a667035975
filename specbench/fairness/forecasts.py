"""What models expect at the learnt positions of given texts: their logits of every next token, a batch in one pass."""

from collections.abc import Sequence
from typing import Protocol

import torch

from specbench.models.causal_lm import CausalLM
from specbench.ngram.model import NgramModel
from specbench.training.passes import Batch, Sample, learnt_logits

MAX_LOGITS = 1 << 27  # of one batch of texts: half a gigabyte in float32


class Forecaster(Protocol):
    """Gives the next-token distribution at every learnt position of texts; `context_limit` as CausalLM's."""

    name: str
    revision: str | None
    context_limit: int | None

    def logits(self, batch: Batch) -> torch.Tensor:
        """[num_learnt, vocab], the texts one below the other."""


class ModelForecaster:
    """A causal language model, without its cache."""

    def __init__(self, model: CausalLM) -> None:
        self.name, self.revision, self.context_limit = model.name, model.revision, model.context_limit
        self._model = model

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        return learnt_logits(self._model.model, batch, self._model.vocab_size)


class NgramForecaster:
    """An n-gram model: the logarithms of its counts; what never followed has −∞."""

    def __init__(self, model: NgramModel, vocab_size: int, name: str, device: torch.device) -> None:
        self.name = name
        self.revision: str | None = model.digest
        self.context_limit: int | None = None
        self._model, self._vocab_size, self._device = model, vocab_size, device

    def logits(self, batch: Batch) -> torch.Tensor:
        rows = [self._row(context) for text in batch.samples for context in self._contexts(text)]
        return torch.stack(rows).to(self._device)

    def _contexts(self, text: Sample) -> list[list[int]]:
        num_before = self._model.order - 1
        return [list(text.ids[max(0, end - num_before) : end]) for end in range(text.num_given, len(text.ids))]

    def _row(self, context: list[int]) -> torch.Tensor:
        token_ids, counts = self._model.continuations(context)
        row = torch.full((self._vocab_size,), -torch.inf)
        row[torch.as_tensor(token_ids.astype("int64"))] = torch.as_tensor(counts.astype("float32")).log()
        return row


def batches(texts: Sequence[Sample], vocab_size: int) -> list[list[int]]:
    """The numbers of the texts in batches of similar length, each with at most MAX_LOGITS logits (or a single text)."""
    made: list[list[int]] = []
    for number in sorted(range(len(texts)), key=lambda n: len(texts[n].ids)):
        together = [*made[-1], number] if made else [number]
        longest = len(texts[number].ids)
        if made and len(together) * longest * vocab_size <= MAX_LOGITS:
            made[-1].append(number)
        else:
            made.append([number])
    return made
