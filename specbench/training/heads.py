"""Losses of draft heads, which learn from the target's hidden states and distributions: Medusa, EAGLE, EAGLE-3."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache

from specbench.models.causal_lm import CausalLM
from specbench.models.heads.eagle import EagleHead
from specbench.training.passes import Batch, cross_entropy_full, in_float32, unwrapped

HeadLosses = Callable[[Batch, nn.Module], Tensor]


class TargetOutput(NamedTuple):
    """What the target makes of a batch: the ids that it reads [num_rows, length], the hidden states of each layer
    [num_rows, length, width], and the logits before every learnt token [num_learnt, vocab_size]."""

    ids: Tensor
    hidden: Sequence[Tensor]
    logits: Tensor


@torch.no_grad()
def read_by_target(target: CausalLM, batch: Batch, layers: Sequence[int]) -> TargetOutput:
    """Returns the target's hidden states of `layers`, numbered as in transformers' `hidden_states`, and its logits."""
    ids = batch.ids[:, :-1].to(target.device)
    made = target.model(input_ids=ids, use_cache=False, output_hidden_states=list(layers))
    rows, columns = (place.to(target.device) for place in batch.places)
    return TargetOutput(
        ids, [made.hidden_states[layer] for layer in layers], made.logits[rows, columns, : target.vocab_size]
    )


def medusa_losses(target: CausalLM, decay: float) -> HeadLosses:
    """Returns the loss of Medusa heads: the sum over heads k of decay^k times the cross-entropy with the target's
    distribution k + 2 places after a hidden state (arXiv:2401.10774, §2.2.1, with soft labels)."""
    num_layers = target.model.config.get_text_config().num_hidden_layers

    def losses(batch: Batch, heads: nn.Module) -> Tensor:
        found = read_by_target(target, batch, [num_layers])
        rows, columns = (place.to(target.device) for place in batch.places)
        total = torch.zeros(len(rows), device=target.device)
        for number, head in enumerate(unwrapped(heads)):
            learnt = (columns > number).nonzero()[:, 0]
            states = found.hidden[0][rows[learnt], columns[learnt] - 1 - number]
            for part in head:
                states = part(states)
            loss = cross_entropy_full(found.logits[learnt], states)
            total = total.index_add(0, learnt, decay**number * loss)
        return total

    return losses


def eagle_losses(
    target: CausalLM, decay: float, num_steps: int, logit_weight: float, state_weight: float
) -> HeadLosses:
    """Returns the loss of an EAGLE head: the sum over draft steps s of decay^s times the weighted losses of the step.

    They are the cross-entropy with the target's distribution and, for EAGLE-1, the distance to the target's hidden
    state (smooth L1, mean over its elements; arXiv:2401.15077, §3.2). Step s reads the head's own states of step s − 1
    and the true tokens. A position attends to the target's states up to the one that its draft starts from and to its
    own drafted states (the training-time test of arXiv:2503.01840, §3.2).
    """

    def losses(batch: Batch, model: nn.Module) -> Tensor:
        head: EagleHead = unwrapped(model)
        found = read_by_target(target, batch, head.layout.hidden_layers)
        rows, columns = (place.to(target.device) for place in batch.places)
        teacher, is_covered = draft_teacher(head, found.logits)
        total = torch.zeros(len(rows), device=target.device)
        for step, states in enumerate(unrolled(head, found, num_steps)):
            learnt = ((columns > step) & is_covered).nonzero()[:, 0]
            states = states[rows[learnt], columns[learnt] - 1 - step]
            loss = logit_weight * soft_cross_entropy(teacher[learnt], head.draft_logits(states))
            if state_weight:
                wanted = found.hidden[0][rows[learnt], columns[learnt]]
                loss = loss + state_weight * functional.smooth_l1_loss(states, wanted, reduction="none").mean(-1)
            total = total.index_add(0, learnt, decay**step * loss)
        return total

    return losses


def draft_teacher(head: EagleHead, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the target's probabilities over the draft vocabulary, [num_learnt, draft_vocab_size], and whether the
    target's most probable token is in it, [num_learnt]."""
    probs = torch.softmax(in_float32(logits), dim=-1)
    if head.d2t is None:
        return probs[:, : head.layout.draft_vocab_size], torch.ones(len(probs), dtype=torch.bool, device=probs.device)
    token_ids = torch.arange(len(head.d2t), device=probs.device) + head.d2t
    is_drafted = torch.zeros(probs.shape[-1], dtype=torch.bool, device=probs.device).index_fill_(0, token_ids, True)
    kept = probs.index_select(-1, token_ids)
    return kept / kept.sum(-1, keepdim=True).clamp_min(1e-20), is_drafted[probs.argmax(-1)]


def soft_cross_entropy(probs: Tensor, logits: Tensor) -> Tensor:
    """Returns −Σ p ln q of each row: [num_rows]."""
    return -(probs * torch.log_softmax(in_float32(logits), dim=-1)).sum(-1)


def unrolled(head: EagleHead, found: TargetOutput, num_steps: int) -> list[Tensor]:
    """Returns the head's states of each draft step: [num_rows, length − 1 − step, width].

    Position i of step s drafts token i + 2 + s from the target's states up to i and the tokens up to i + 1 + s.
    """
    length = found.ids.shape[1]
    cache = DynamicCache()
    states = head.project(found.hidden)
    made: list[Tensor] = []
    past = torch.ones(length, length, dtype=torch.bool, device=found.ids.device).tril()
    own = torch.eye(length, dtype=torch.bool, device=found.ids.device)
    for step in range(num_steps):
        tokens = functional.pad(found.ids[:, 1 + step :], (0, min(length, 1 + step)))[:, :length]
        mask = torch.cat([past, *([own] * step)], dim=1)[None, None]
        positions = torch.arange(step, step + length, device=found.ids.device)[None]
        states = head(tokens, states, positions, mask, cache)
        made.append(states)
        states = head.next_states(states)
    return made
