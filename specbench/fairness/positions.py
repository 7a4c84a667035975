"""Teacher-forced numbers of single positions: two models' raw distributions of the same next token."""

from typing import Final

import torch

# The columns of what `position_numbers` gives.
CROSS_ENTROPY: Final = 0
KL: Final = 1
TV: Final = 2
ACCEPTANCE: Final = 3
TARGET_MISFIT: Final = 4
DRAFT_MISFIT: Final = 5
EXCLUDED: Final = 6
NUM_COLUMNS: Final = 7

TINY = torch.finfo(torch.float32).tiny
CHUNK = 1 << 22  # probabilities that are in float64 at once


def position_numbers(target_logits: torch.Tensor, draft_logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The numbers of each position, float64 [num_positions, NUM_COLUMNS], on the CPU.

    `target_logits`, `draft_logits`: [num_positions, vocab], whose softmax at temperature 1, untruncated, is p and q;
    `tokens`: [num_positions], the text's own. Columns: H(p, q) and KL(p‖q) in nats, TV = ½ Σ |p − q|, α = Σ min(p, q),
    1 − p(token), 1 − q(token), and the mass of p on tokens that q excludes. These count as the smallest probability
    that float32 holds, so that D and KL stay finite; to theorem 1 that changes nothing. Sums are made in float64, so
    that the theorems can be tested to 1e-9. arXiv:2510.02128, equations 5, 7 and 10.
    """
    size = max(1, CHUNK // target_logits.shape[-1])
    parts = zip(target_logits.split(size), draft_logits.split(size), tokens.split(size), strict=True)
    return torch.cat([_numbers(*part) for part in parts])


def _numbers(target_logits: torch.Tensor, draft_logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    p, log_p = _distribution(target_logits)
    q, log_q = _distribution(draft_logits)
    # Summed term by term as p ln(p/q) − p + q, none of which is below 0: rounding cannot make the divergence negative.
    kl = (p * (log_p - log_q) - p + q.clamp_min(TINY)).clamp_min(0.0).sum(-1)
    entropy = -(p * log_p).sum(-1)
    columns = [
        entropy + kl,
        kl,
        (p - q).abs().sum(-1) / 2,
        torch.minimum(p, q).sum(-1),
        1.0 - p.gather(1, tokens[:, None])[:, 0],
        1.0 - q.gather(1, tokens[:, None])[:, 0],
        (p * (q < TINY)).sum(-1),
    ]
    return torch.stack(columns, dim=1).cpu()


def _distribution(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [n, vocab] and their logarithms, with zero as TINY."""
    logits = logits.float().cpu() if logits.device.type == "mps" else logits.float()  # mps has no float64
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    return log_probs.exp(), log_probs.clamp_min(torch.tensor(TINY, dtype=torch.float64).log().item())
