"""Teacher-forced passes of target or drafter: the logits before every learnt token, and losses in nats.

Logits are [num_positions, vocab]. Losses are computed in float32, or in float64 if the logits have it.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

MAX_CACHED_BYTES = 2**30  # of the target's cached outputs
MAX_LOGITS = 2**27  # of one pass: those of a real vocabulary take more memory than all hidden states


@dataclass(frozen=True)
class Sample:
    """A text of one group (a language). The first `num_given` tokens (at least one) are given, the others learnt."""

    group: str
    ids: tuple[int, ...]
    num_given: int

    @property
    def num_learnt(self) -> int:
        return len(self.ids) - self.num_given


@dataclass(frozen=True)
class Batch:
    """Samples in one forward pass. They are padded at the end, so that no learnt token attends to padding. No attention
    mask is needed for any kind of layer."""

    samples: Sequence[Sample]

    @property
    def num_learnt(self) -> int:
        return sum(sample.num_learnt for sample in self.samples)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Returns the group and the number of learnt tokens of each sample."""
        return [(sample.group, sample.num_learnt) for sample in self.samples]

    @cached_property
    def ids(self) -> Tensor:
        """Returns [num_samples, length], padded with 0."""
        rows = [torch.tensor(sample.ids) for sample in self.samples]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)

    @cached_property
    def learnt_ids(self) -> Tensor:
        """Returns the learnt tokens of all samples in order: [num_learnt]."""
        return torch.tensor([token for sample in self.samples for token in sample.ids[sample.num_given :]])

    @cached_property
    def places(self) -> Tensor:
        """Returns the row and the column of the position before every learnt token: [2, num_learnt]."""
        return torch.tensor([
            (row, column)
            for row, sample in enumerate(self.samples)
            for column in range(sample.num_given - 1, len(sample.ids) - 1)
        ]).T  # fmt: skip


def batches_of(samples: Sequence[Sample], batch_size: int, max_positions: int | None = None) -> list[Batch]:
    """Returns the samples in batches of similar length. A batch of several samples has at most `max_positions`, with
    padding."""
    batches: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda sample: len(sample.ids)):
        last = batches[-1] if batches else []
        is_full = max_positions is not None and (len(last) + 1) * len(sample.ids) > max_positions
        if not last or len(last) == batch_size or is_full:
            batches.append([])
        batches[-1].append(sample)
    return [Batch(batch) for batch in batches]


def learnt_logits(model: nn.Module, batch: Batch, vocab_size: int) -> Tensor:
    """Returns the model's logits before every learnt token, in the model's dtype: [num_learnt, vocab_size].

    Columns beyond the vocabulary are padding of the output layer and are dropped. The last token of the longest sample
    is not read, since nothing follows it.
    """
    device = device_of(model)
    rows, columns = batch.places
    ids = batch.ids[:, :-1]
    first = int(columns.min())
    num_kept = ids.shape[1] - first
    options = {"logits_to_keep": num_kept} if accepts_argument(model, "logits_to_keep") else {}
    logits: Tensor = model(input_ids=ids.to(device), use_cache=False, **options).logits[:, -num_kept:]
    return logits[rows.to(device), (columns - first).to(device), :vocab_size]


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def unwrapped(model: nn.Module) -> Any:
    """Returns the model inside wrappers that distribute it over devices."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def innermost(model: nn.Module) -> Any:
    """Returns a model without adapters and wrappers, whose forward pass names its arguments."""
    network: Any = unwrapped(model)
    return network.get_base_model() if hasattr(network, "get_base_model") else network


def accepts_argument(model: nn.Module, argument: str) -> bool:
    """Returns whether a model's forward pass, inside adapters and wrappers, has an argument."""
    return argument in inspect.signature(innermost(model).forward).parameters


def in_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def cross_entropy_full(target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """Returns H(p, q) = −Σ_x p(x) ln q(x) with the target's whole distribution: [num_positions] (P0 eq. 10, left)."""
    target_probs = torch.softmax(in_float32(target_logits), dim=-1)
    return -(target_probs * torch.log_softmax(in_float32(draft_logits), dim=-1)).sum(-1)


def cross_entropy_sampled(token_ids: Tensor, draft_logits: Tensor) -> Tensor:
    """Returns −ln q(x) of given tokens [num_positions]. For x ~ p its mean is H(p, q) (P0 eq. 10, right, and App.
    D.1)."""
    return functional.cross_entropy(in_float32(draft_logits), token_ids.to(draft_logits.device), reduction="none")


def truncated_probs(target_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Returns probabilities and ids of the target's `top_k` most probable tokens, both [num_positions, top_k]."""
    best = torch.softmax(in_float32(target_logits), dim=-1).topk(min(top_k, target_logits.shape[-1]), dim=-1)
    return best.values, best.indices


def truncated_cross_entropy(target_probs: Tensor, token_ids: Tensor, draft_logits: Tensor) -> Tensor:
    """Returns −Σ p(x) ln q(x) over the target's most probable tokens of `truncated_probs`: [num_positions] (P1 App.
    B).

    The tail is dropped, and p is not normalised. If the tail has the mass ε, this is (1 − ε) times the normalised form.
    Both are smallest if q is p without its tail, normalised.
    """
    log_probs = torch.log_softmax(in_float32(draft_logits), dim=-1).gather(-1, token_ids)
    return -(target_probs * log_probs).sum(-1)


def corrective_weights(divergences: Sequence[float]) -> list[float]:
    """Returns (D_T − D_min) / m for each of m tasks (P0 eq. 9). The best task gets 0.

    The weights are constants, so Σ weight · ∇D is ½ of the gradient of (1/m) Σ (D − c)² with the constant c = D_min. P0
    omits the factor ½.
    """
    best = min(divergences)
    return [(divergence - best) / len(divergences) for divergence in divergences]


def unfairness(divergences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns 𝒰 = (1/m) Σ (D_T − D_min)² over the last axis: [..., m] → [...], in nats² (P0 eq. 6)."""
    lowest = divergences.min(axis=-1, keepdims=True)
    return np.asarray(((divergences - lowest) ** 2).mean(axis=-1))
