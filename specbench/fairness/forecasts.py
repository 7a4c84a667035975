"""What models expect at the positions of given texts: their logits of every next token, many texts in one pass."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from specbench.models.causal_lm import CausalLM
from specbench.ngram.model import NgramModel

MAX_LOGITS = 1 << 27  # of one batch of texts: half a gigabyte in float32


@dataclass(frozen=True)
class Text:
    """A prompt and what follows it; the positions are those of the tokens that follow."""

    prompt_ids: tuple[int, ...]
    new_ids: tuple[int, ...]

    @property
    def read_ids(self) -> list[int]:
        """What a model must read to say something of every position."""
        return [*self.prompt_ids, *self.new_ids][:-1]


class Forecaster(Protocol):
    """Gives the next-token distribution at every position of texts; `context_limit` as CausalLM's."""

    name: str
    revision: str | None
    context_limit: int | None

    def logits(self, texts: Sequence[Text]) -> torch.Tensor:
        """[num_positions of all texts, vocab], the texts one below the other."""


class ModelForecaster:
    """A causal language model, without its cache; texts stand at the left, so that padding comes after what is read."""

    def __init__(self, model: CausalLM) -> None:
        self.name, self.revision, self.context_limit = model.name, model.revision, model.context_limit
        self._model = model
        self._can_keep_logits = "logits_to_keep" in inspect.signature(model.model.forward).parameters

    @torch.inference_mode()
    def logits(self, texts: Sequence[Text]) -> torch.Tensor:
        longest = max(len(text.read_ids) for text in texts)
        first = min(len(text.prompt_ids) for text in texts) - 1  # the first place whose logits are asked for
        rows = [text.read_ids + [0] * (longest - len(text.read_ids)) for text in texts]
        options: dict[str, Any] = {"logits_to_keep": longest - first} if self._can_keep_logits else {}
        output = self._model.model(input_ids=torch.tensor(rows, device=self._model.device), use_cache=False, **options)
        kept = output.logits[:, first - longest :, : self._model.vocab_size]
        parts = []
        for row, text in zip(kept, texts, strict=True):
            start = len(text.prompt_ids) - 1 - first
            parts.append(row[start : start + len(text.new_ids)])
        return torch.cat(parts)


class NgramForecaster:
    """An n-gram model: the logarithms of its counts; what never followed has −∞."""

    def __init__(self, model: NgramModel, vocab_size: int, name: str, device: torch.device) -> None:
        self.name = name
        self.revision: str | None = model.digest
        self.context_limit: int | None = None
        self._model, self._vocab_size, self._device = model, vocab_size, device

    def logits(self, texts: Sequence[Text]) -> torch.Tensor:
        rows = [self._row(context) for text in texts for context in self._contexts(text)]
        return torch.stack(rows).to(self._device)

    def _contexts(self, text: Text) -> list[list[int]]:
        num_before = self._model.order - 1
        ids, start = text.read_ids, len(text.prompt_ids)
        return [ids[max(0, end - num_before) : end] for end in range(start, start + len(text.new_ids))]

    def _row(self, context: list[int]) -> torch.Tensor:
        token_ids, counts = self._model.continuations(context)
        row = torch.full((self._vocab_size,), -torch.inf)
        row[torch.as_tensor(token_ids.astype("int64"))] = torch.as_tensor(counts.astype("float32")).log()
        return row


def batches(texts: Sequence[Text], vocab_size: int) -> list[list[int]]:
    """The numbers of the texts in batches of similar length, each with at most MAX_LOGITS logits (or a single text)."""
    made: list[list[int]] = []
    for number in sorted(range(len(texts)), key=lambda n: len(texts[n].read_ids)):
        together = [*made[-1], number] if made else [number]
        longest = len(texts[number].read_ids)
        if made and len(together) * longest * vocab_size <= MAX_LOGITS:
            made[-1].append(number)
        else:
            made.append([number])
    return made
