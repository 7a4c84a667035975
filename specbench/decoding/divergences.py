"""Divergences between target and draft distributions, per position, in nats.

`target_probs` and `draft_probs` are [num_positions, vocab]; every function returns [num_positions]. Source: Holsman
et al., "Fuzzy Speculative Decoding" (arXiv:2502.20704), §4 and App. C. The paper's definitions are `kl` =
KL(target‖draft), `js`, `tv` and their top-k variants. Its published code computes other things under these names: its
"js_div" is `js_reference` here, its "kl_div" is `reverse_kl`. By the first author's later word the paper's figures
correspond to the reverse direction, so its thresholds T = 0.3 / 0.4 / 0.7 (one per model pair) are reproduced with
`reverse_kl`; those of its published code run as it is, with `js_reference`. A threshold means nothing without the name
of its divergence.
"""

import math
from collections.abc import Callable

import torch

Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
TOP_K = 50
MAX_JS = math.log(2.0)


def kl(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """KL(target‖draft) = Σ p (ln p − ln q). A probability that float32 cannot hold counts as the smallest that it can,
    so that the divergence stays finite (≤ 88) where the draft excludes what the target allows."""
    draft_probs = draft_probs.clamp_min(torch.finfo(draft_probs.dtype).tiny)
    terms: torch.Tensor = torch.xlogy(target_probs, target_probs) - torch.xlogy(target_probs, draft_probs)
    return terms.sum(-1)


def reverse_kl(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """KL(draft‖target)."""
    return kl(draft_probs, target_probs)


def js(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Jensen–Shannon: ½KL(p‖m) + ½KL(q‖m), m = (p + q)/2; at most ln 2."""
    middle = (target_probs + draft_probs) / 2
    return ((kl(target_probs, middle) + kl(draft_probs, middle)) / 2).clamp_min(0.0)


def js_reference(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """The published code's "js_div": ½KL(m‖p) + ½KL(m‖q), m = (p + q)/2; unbounded."""
    middle = (target_probs + draft_probs) / 2
    return (kl(middle, target_probs) + kl(middle, draft_probs)) / 2


def tv(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Total variation: ½ Σ |p − q|."""
    return (target_probs - draft_probs).abs().sum(-1) / 2


def top_k(divergence: Divergence) -> Divergence:
    """The divergence over the target's 50 most probable tokens and one bucket for all others."""

    def over_buckets(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        best = target_probs.topk(min(TOP_K, target_probs.shape[-1]), dim=-1).indices
        return divergence(_with_rest(target_probs, best), _with_rest(draft_probs, best))

    return over_buckets


def _with_rest(probs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    kept = probs.gather(-1, chosen)
    rest = probs.scatter(-1, chosen, 0.0).sum(-1, keepdim=True)
    return torch.cat([kept, rest], dim=-1)


DIVERGENCES: dict[str, Divergence] = {
    "js": js,
    "kl": kl,
    "reverse_kl": reverse_kl,
    "tv": tv,
    "js_reference": js_reference,
    "top_k_js": top_k(js),
    "top_k_kl": top_k(kl),
    "top_k_reverse_kl": top_k(reverse_kl),
    "top_k_tv": top_k(tv),
}
