"""Losses of Medusa, EAGLE and EAGLE-3 heads, which learn from the target's hidden states and distributions."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache

from specbench.models.causal_lm import CausalLM
from specbench.models.heads.eagle import EagleHead
from specbench.models.heads.medusa import MedusaHeads
from specbench.training.passes import Batch, in_float32, unwrapped

DraftNetwork = MedusaHeads | EagleHead


class TargetOutput(NamedTuple):
    """The target's output for a batch: the ids that it reads [num_rows, length], the hidden states of each layer
    [num_rows, length, width], and the logits before every learnt token [num_learnt, vocab_size]."""

    ids: Tensor
    hidden: Sequence[Tensor]
    logits: Tensor


class DraftStep(NamedTuple):
    """The output of one draft step for the learnt tokens with the indices `learnt` [num_drafted]: logits
    [num_drafted, draft_vocab_size] and the head's states [num_drafted, width] (Medusa: the target's states)."""

    learnt: Tensor
    logits: Tensor
    states: Tensor


@torch.no_grad()
def read_by_target(target: CausalLM, batch: Batch, head: DraftNetwork) -> TargetOutput:
    """Returns the target's logits and the hidden states that a head reads."""
    last = target.model.config.get_text_config().num_hidden_layers
    layers = head.layout.hidden_layers if isinstance(head, EagleHead) else (last,)
    ids = batch.ids[:, :-1].to(target.device)
    output = target.model(input_ids=ids, use_cache=False, output_hidden_states=list(layers))
    rows, columns = places_of(batch, target.device)
    hidden = [output.hidden_states[layer].float() for layer in layers]
    return TargetOutput(ids, hidden, output.logits[rows, columns, : target.vocab_size])


def places_of(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the row and the column of the position before every learnt token, both [num_learnt]."""
    rows, columns = batch.places
    return rows.to(device), columns.to(device)


class HeadLosses:
    """The loss of a head on every learnt token of a batch: [num_learnt].

    It is the sum over draft steps s of decay^s times the step's weighted losses: the cross-entropy with the target's
    distribution (Medusa: arXiv:2401.10774, §2.2.1, with soft labels; EAGLE-3: arXiv:2503.01840, §3.2) and, for EAGLE-1,
    the distance to the target's hidden state (smooth L1, mean over its elements; arXiv:2401.15077, §3.2).
    """

    def __init__(
        self, target: CausalLM, num_steps: int, decay: float, logit_weight: float = 1.0, state_weight: float = 0.0
    ) -> None:
        self.target, self.num_steps, self.decay = target, num_steps, decay
        self.logit_weight, self.state_weight = logit_weight, state_weight

    def __call__(self, batch: Batch, model: nn.Module) -> Tensor:
        head: DraftNetwork = unwrapped(model)
        found = read_by_target(self.target, batch, head)
        teacher, is_covered = draft_teacher(head, found.logits)
        rows, columns = places_of(batch, self.target.device)
        total = torch.zeros(len(rows), device=self.target.device)
        for number, step in enumerate(draft_steps(head, found, batch, self.num_steps)):
            entropy = -(teacher[step.learnt] * torch.log_softmax(in_float32(step.logits), dim=-1)).sum(-1)
            loss = self.logit_weight * entropy * is_covered[step.learnt]
            if self.state_weight:
                wanted = found.hidden[0][rows[step.learnt], columns[step.learnt]]
                distance = functional.smooth_l1_loss(step.states, wanted, reduction="none")
                loss = loss + self.state_weight * distance.mean(-1)
            total = total.index_add(0, step.learnt, self.decay**number * loss)
        return total


def draft_teacher(head: DraftNetwork, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the target's probabilities over the draft vocabulary, [num_learnt, draft_vocab_size], and whether the
    target's most probable token is in it, [num_learnt]."""
    probs = torch.softmax(in_float32(logits), dim=-1)
    if isinstance(head, MedusaHeads) or head.d2t is None:
        return probs, torch.ones(len(probs), dtype=torch.bool, device=probs.device)
    token_ids = torch.arange(len(head.d2t), device=probs.device) + head.d2t
    is_drafted = torch.zeros(probs.shape[-1], dtype=torch.bool, device=probs.device).index_fill_(0, token_ids, True)
    kept = probs.index_select(-1, token_ids)
    return kept / kept.sum(-1, keepdim=True).clamp_min(1e-20), is_drafted[probs.argmax(-1)]


def draft_steps(head: DraftNetwork, found: TargetOutput, batch: Batch, num_steps: int) -> Iterator[DraftStep]:
    """Yields the output of draft steps 1, 2, … for the learnt tokens that have enough text before them."""
    rows, columns = places_of(batch, found.ids.device)
    states = unroll(head, found, num_steps) if isinstance(head, EagleHead) else list(found.hidden) * num_steps
    for step in range(num_steps):
        learnt = (columns > step).nonzero()[:, 0]
        step_states = states[step][rows[learnt], columns[learnt] - 1 - step]
        logits = head.draft_logits(step_states) if isinstance(head, EagleHead) else head.head_logits(step, step_states)
        yield DraftStep(learnt, logits, step_states)


def unroll(head: EagleHead, found: TargetOutput, num_steps: int) -> list[Tensor]:
    """Returns the head's states of each draft step: [num_rows, length, width].

    Position i of step s drafts token i + 2 + s from the target's states up to i and the tokens up to i + 1 + s. It
    attends to the target's states up to i and to its own states of earlier steps (the training-time test of
    arXiv:2503.01840, §3.2).
    """
    length = found.ids.shape[1]
    cache = DynamicCache()
    states = head.project(found.hidden)
    unrolled: list[Tensor] = []
    past = torch.ones(length, length, dtype=torch.bool, device=found.ids.device).tril()
    own = torch.eye(length, dtype=torch.bool, device=found.ids.device)
    for step in range(num_steps):
        tokens = functional.pad(found.ids[:, 1 + step :], (0, min(length, 1 + step)))[:, :length]
        mask = torch.cat([past, *([own] * step)], dim=1)[None, None]
        positions = torch.arange(step, step + length, device=found.ids.device)[None]
        unrolled.append(head(tokens, states, positions, mask, cache))
        states = head.next_states(unrolled[-1])
    return unrolled
