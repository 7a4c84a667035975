"""What drafters are trained on: cross-entropies of target and drafter per position, in nats; s-CDF's weights and 𝒰.

Logits are [num_positions, vocab]. They are computed with in float32 at least: half precision is widened, float64 stays.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional


def precise(logits: Tensor) -> Tensor:
    """Logits in float32, or in float64 where they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def cross_entropy_full(target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """H(p, q) = −Σ_x p(x) ln q(x) with the target's whole distribution: [num_positions] (P0 eq. 10, left)."""
    target_probs = torch.softmax(precise(target_logits), dim=-1)
    return -(target_probs * torch.log_softmax(precise(draft_logits), dim=-1)).sum(-1)


def cross_entropy_sampled(token_ids: Tensor, draft_logits: Tensor) -> Tensor:
    """−ln q(x) of given tokens [num_positions]. For x ~ p its mean is H(p, q) (P0 eq. 10, right, and App. D.1)."""
    return functional.cross_entropy(precise(draft_logits), token_ids, reduction="none")


def truncated_probs(target_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The target's `top_k` most probable tokens: their probabilities and ids, both [num_positions, top_k]."""
    best = torch.softmax(precise(target_logits), dim=-1).topk(min(top_k, target_logits.shape[-1]), dim=-1)
    return best.values, best.indices


def truncated_cross_entropy(target_probs: Tensor, token_ids: Tensor, draft_logits: Tensor) -> Tensor:
    """−Σ p(x) ln q(x) over the target's most probable tokens, as `truncated_probs` gives them: [num_positions] (P1
    App. B).

    The tail is dropped and what is left is not normalised. Where the tail has the mass ε, this is (1 − ε) times the
    normalised form: both have their minimum where q is p without its tail.
    """
    log_probs = torch.log_softmax(precise(draft_logits), dim=-1).gather(-1, token_ids)
    return -(target_probs * log_probs).sum(-1)


def corrective_weights(divergences: Sequence[float]) -> list[float]:
    """(D_T − D_min) / m for each of m tasks (P0 eq. 9): the best one gets 0.

    Weights are constants. Σ weight · ∇D is then ½ of the gradient of (1/m) Σ (D − c)² with c = D_min held constant;
    P0 calls it exactly that gradient, without the factor.
    """
    best = min(divergences)
    return [(divergence - best) / len(divergences) for divergence in divergences]


def unfairness(divergences: NDArray[np.float64]) -> NDArray[np.float64]:
    """𝒰 = (1/m) Σ (D_T − D_min)², over the last axis: [..., m] → [...], in nats² (P0 eq. 6)."""
    lowest = divergences.min(axis=-1, keepdims=True)
    return np.asarray(((divergences - lowest) ** 2).mean(axis=-1))
