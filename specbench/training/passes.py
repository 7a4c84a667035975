"""Teacher-forced passes: the logits before every token that is learnt, of target or drafter, and nothing else."""

import inspect
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

KEPT_BYTES = 2**30  # of target logits that are kept for a second use


@dataclass(frozen=True)
class Sample:
    """A text of one group (a language): its first `num_given` tokens (at least one) are read, the rest is learnt."""

    group: str
    ids: tuple[int, ...]
    num_given: int

    @property
    def num_learnt(self) -> int:
        return len(self.ids) - self.num_given


@dataclass(frozen=True)
class Batch:
    """Samples that go through a model together. They are padded at their end, where no learnt token reads it: no
    attention mask is needed, whatever the kind of the layers."""

    samples: Sequence[Sample]

    @property
    def num_learnt(self) -> int:
        return sum(sample.num_learnt for sample in self.samples)

    @cached_property
    def ids(self) -> Tensor:
        """[num_samples, length], padded with 0."""
        rows = [torch.tensor(sample.ids) for sample in self.samples]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)

    @cached_property
    def learnt_ids(self) -> Tensor:
        """The learnt tokens of all samples, one sample after the other: [num_learnt]."""
        return torch.tensor([token for sample in self.samples for token in sample.ids[sample.num_given :]])

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Row and column of the position before every learnt token, both [num_learnt]."""
        places = [
            (row, column)
            for row, sample in enumerate(self.samples)
            for column in range(sample.num_given - 1, len(sample.ids) - 1)
        ]
        rows, columns = torch.tensor(places).T
        return rows, columns


def batches_of(samples: Sequence[Sample], batch_size: int) -> list[Batch]:
    """The samples in batches of similar length."""
    ordered = sorted(samples, key=lambda sample: len(sample.ids))
    return [Batch(ordered[start : start + batch_size]) for start in range(0, len(ordered), batch_size)]


def learnt_logits(model: nn.Module, batch: Batch, vocab_size: int) -> Tensor:
    """The model's logits before every learnt token, in its own dtype: [num_learnt, vocab_size].

    Columns beyond the vocabulary are padding of the output layer, and left out. The graph is kept where gradients are.
    The last token of the longest sample is not read: nothing follows it.
    """
    device = device_of(model)
    rows, columns = batch.places
    ids = batch.ids[:, :-1]
    first = int(columns.min())
    num_kept = ids.shape[1] - first
    options: dict[str, Any] = {"logits_to_keep": num_kept} if takes(model, "logits_to_keep") else {}
    logits: Tensor = model(input_ids=ids.to(device), use_cache=False, **options).logits[:, -num_kept:]
    return logits[rows.to(device), (columns - first).to(device), :vocab_size]


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def bare(model: nn.Module) -> Any:
    """The model inside what spreads it over several devices."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def takes(model: nn.Module, argument: str) -> bool:
    """Whether the forward pass of a model has an argument; asked of the network inside adapters and wrappers."""
    network = bare(model)
    network = network.get_base_model() if hasattr(network, "get_base_model") else network
    return argument in inspect.signature(network.forward).parameters


class FrozenLogits:
    """The logits of a model that is not trained, kept for a second use as long as there is room for them."""

    def __init__(self, model: nn.Module, vocab_size: int, limit_bytes: int = KEPT_BYTES) -> None:
        self._model, self._vocab_size, self._limit_bytes = model, vocab_size, limit_bytes
        self._kept: dict[Hashable, Tensor] = {}
        self._num_bytes = 0

    @torch.no_grad()
    def of(self, key: Hashable, batch: Batch) -> Tensor:
        """As `learnt_logits`; `key` names the batch."""
        if key in self._kept:
            return self._kept[key]
        logits = learnt_logits(self._model, batch, self._vocab_size)
        num_bytes = logits.numel() * logits.element_size()
        if self._num_bytes + num_bytes <= self._limit_bytes:
            self._kept[key] = logits
            self._num_bytes += num_bytes
        return logits

    def forget(self) -> None:
        self._kept.clear()
        self._num_bytes = 0
