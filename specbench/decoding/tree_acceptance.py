"""The chance that a child of a tree's root is accepted: under a rule, and at most under any lossless rule."""

import math

import torch

from specbench.decoding.proposal import Proposal, TreeProposal
from specbench.decoding.sampling import Distributions
from specbench.decoding.verification import VerificationRule

SAMPLED_EVERY, FIRST_SAMPLE = 8, 3  # steps
MAX_SAMPLES = 8  # of a generation, since each keeps the distributions of its step in memory
STEP = 0.4  # of the logarithm of the integration variable
LOWEST, DECAY = 1e-4, 40.0  # ends of the integral, the upper one in units of its slowest decay


def root_acceptance(rule: VerificationRule, tree: Proposal, target: Distributions) -> tuple[float, float] | None:
    """Returns the chance that the rule accepts a child of the root, given the tree, and the optimum over all lossless
    rules for children that are drawn in the same way. Over several draws the mean of the first never exceeds that of
    the second.

    Returns None for a chain, for a root without children, and where the rule does not know its chance.
    """
    if not isinstance(tree, TreeProposal) or not (children := tree.children(-1)):
        return None
    chance = rule.root_chance(tree, target)
    if chance is None:
        return None
    token_ids = [tree.token_ids[child] for child in children]
    draft_probs = None if tree.draws == "fixed" else tree.draft_probs(-1)
    return chance, optimal_acceptance(target.probs[0], draft_probs, token_ids, tree.draws)


def optimal_acceptance(
    target_probs: torch.Tensor, draft_probs: torch.Tensor | None, token_ids: list[int], draws: str
) -> float:
    """Returns min over sets H of tokens of p(H) + 1 − Pr(all children in H), the largest chance with which a lossless
    rule can accept one of several children (arXiv:2502.18779).

    `draft_probs` is what the children were drawn from, None for fixed ones; `draws`: see TreeProposal. Of the children
    `token_ids` only the fixed ones and the number of the drawn ones count.
    """
    p = _exact(target_probs)
    if draft_probs is None:
        return float(p[token_ids].sum())
    q = _exact(draft_probs)
    if draws == "top_and_one":
        top = torch.tensor(token_ids[:-1], dtype=torch.long, device=p.device)
        rest = q.index_fill(0, top, 0.0)
        overlap = torch.minimum(p, rest / rest.sum()).index_fill(0, top, 0.0)
        return float(p[top].sum() + overlap.sum())
    drawn = q > 0
    p, q = p[drawn], q[drawn] / q[drawn].sum()
    order = (p / q).argsort()  # the best sets hold the tokens with the smallest p/q
    p, q = p[order], q[order]
    inside = _all_without_replacement if draws == "without_replacement" else _all_independent
    chances = p.cumsum(0) + 1.0 - inside(q, len(token_ids))
    return min(1.0, float(chances.min()))


def _exact(probs: torch.Tensor) -> torch.Tensor:
    """Returns probabilities in float64, on the CPU where their device has no such numbers."""
    return (probs.cpu() if probs.device.type == "mps" else probs).double()


def _all_independent(probs: torch.Tensor, num_draws: int) -> torch.Tensor:
    """Returns the chance that all draws are among the first n tokens, for every n: [vocab]."""
    return probs.cumsum(0) ** num_draws


def _all_without_replacement(probs: torch.Tensor, num_draws: int) -> torch.Tensor:
    """Returns the chance that all draws without replacement are among the first n tokens, for every n: [vocab].

    Draws without replacement are the order in which independent exponential clocks with rates q ring. All are in H if
    k clocks of H ring before the first of the others, whose rate is R = 1 − q(H). Hence the chance is
    1 − R ∫ exp(−t) Σ_{j<k} e_j(exp(q t) − 1) dt, where e_j is the elementary symmetric polynomial over H. The terms
    j = 0 and 1 are known; the others are integrated over log t by the trapezoidal rule.
    """
    if num_draws >= len(probs):
        return torch.zeros_like(probs).index_fill(0, torch.tensor(len(probs) - 1, device=probs.device), 1.0)
    outside = (1.0 - probs.cumsum(0)).clamp_min(0.0)
    integral = torch.ones_like(probs)
    if num_draws > 1:
        integral += (probs / (1.0 - probs)).cumsum(0)
    if num_draws > 2:
        slowest = float(1.0 - probs.topk(num_draws - 1).values.sum())
        end = math.log(DECAY / max(slowest, 1e-12))
        times = torch.arange(math.log(LOWEST), end, STEP, dtype=probs.dtype, device=probs.device).exp()
        exponents = probs[:, None] * times
        logs = exponents + torch.log(-torch.expm1(-exponents))  # [vocab, times]
        polynomial = logs.logcumsumexp(0)
        for _ in range(2, num_draws):
            before = torch.cat([torch.full_like(polynomial[:1], -math.inf), polynomial[:-1]])
            polynomial = (logs + before).logcumsumexp(0)
            integral += STEP * (times * (polynomial - times).exp()).sum(1)
    return (1.0 - outside * integral).clamp(0.0, 1.0)
