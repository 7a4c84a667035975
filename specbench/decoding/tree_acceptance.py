"""The chance that a rule accepts a child of a tree's node, and the maximum over all lossless rules."""

import math
from collections.abc import Sequence
from itertools import pairwise, takewhile

import torch

from specbench.decoding.proposal import Proposal, TreeProposal
from specbench.decoding.sampling import Distributions, in_double
from specbench.decoding.verification import VerificationRule

SAMPLED_EVERY, FIRST_SAMPLE = 8, 3  # steps
MAX_SAMPLES = 8  # per generation, since each sample keeps the distributions of its step in memory
STEP = 0.4  # step of the logarithm of the integration variable
LOWEST, DECAY = 1e-4, 40.0  # limits of the integral, the upper one in units of its slowest decay
TIMES_AT_ONCE = 64  # integration points at once, since each takes memory for the whole vocabulary


Acceptance = tuple[float, float]  # the chance under the rule, and the optimum


def acceptance_by_level(
    rule: VerificationRule, tree: Proposal, target: Distributions, path: Sequence[int]
) -> list[Acceptance]:
    """Returns the acceptance after the root and after each accepted node `path`, up to the last level of the tree.

    An accepted node without children counts as 0. The list is empty for a chain and for a root without children. For a
    rule that does not verify node by node, it holds at most the acceptance after the root.
    """
    if not isinstance(tree, TreeProposal) or not tree.has_children(-1):
        return []
    nodes = [-1, *path][: tree.num_drafted]
    by_level = (node_acceptance(rule, tree, target, node) if tree.has_children(node) else (0.0, 0.0) for node in nodes)
    return list(takewhile(lambda acceptance: acceptance is not None, by_level))  # type: ignore[arg-type]


def node_acceptance(rule: VerificationRule, tree: TreeProposal, target: Distributions, node: int) -> Acceptance | None:
    """Returns the chance that the rule accepts a child of an accepted node, given the tree, and the optimum over all
    lossless rules (below the root: over those that verify node by node) for children that are drawn in the same way. On
    average over draws, the chance never exceeds the optimum. Returns None if the rule does not know its chance."""
    chance = rule.child_chance(tree, node, target)
    if chance is None:
        return None
    token_ids = [tree.token_ids[child] for child in tree.children(node)]
    draft_probs = None if tree.draws == "fixed" else tree.draft_probs(node)
    return chance, optimal_acceptance(target.probs[node + 1], draft_probs, token_ids, tree.draws)


def optimal_acceptance(
    target_probs: torch.Tensor, draft_probs: torch.Tensor | None, token_ids: list[int], draws: str
) -> float:
    """Returns min over sets H of tokens of p(H) + 1 − Pr(all children in H), the largest chance with which a lossless
    rule can accept one of several children (arXiv:2502.18779).

    `draft_probs`: the distribution that the children were drawn from; None for fixed children. `draws`: see
    TreeProposal. `token_ids`: the children; only the number of drawn children matters, not their tokens.
    """
    p = in_double(target_probs)
    if draft_probs is None:
        return float(p[token_ids].sum())
    q = in_double(draft_probs)
    if draws == "top_and_one":
        top = torch.tensor(token_ids[:-1], dtype=torch.long, device=p.device)
        rest = q.index_fill(0, top, 0.0)
        if rest.any():  # else the drafter can draw no other token
            rest /= rest.sum()
        overlap = torch.minimum(p, rest).index_fill(0, top, 0.0)
        return float(p[top].sum() + overlap.sum())
    drawn = q > 0
    p, q = p[drawn], q[drawn] / q[drawn].sum()
    order = (p / q).argsort()  # the best sets hold the tokens with the smallest p/q
    p, q = p[order], q[order]
    # The chance that not all draws are among the first n tokens, for every n.
    if draws == "without_replacement":
        missed = _missed_without_replacement(q, len(token_ids))
    else:
        missed = 1.0 - q.cumsum(0) ** len(token_ids)
    return float((p.cumsum(0) + missed).min().clamp_max(1.0))


def _missed_without_replacement(probs: torch.Tensor, num_draws: int) -> torch.Tensor:
    """Returns the chance that not all draws without replacement are among the first n tokens, for every n: [vocab].

    Draws without replacement are the order in which independent exponential clocks with rates q ring. All are in H if
    k clocks of H ring before the first of the others, whose rate is R = 1 − q(H). Hence the chance is
    R ∫ exp(−t) Σ_{j<k} e_j(exp(q t) − 1) dt, where e_j is the elementary symmetric polynomial over H. The terms
    j = 0 and 1 are known; the others are integrated over log t by the trapezoidal rule. Each R and 1 − q is a sum of
    the other probabilities, since the difference from 1 has no correct digit where q is nearly 1.
    """
    if num_draws >= len(probs):
        return torch.ones_like(probs).index_fill(0, torch.tensor(len(probs) - 1, device=probs.device), 0.0)
    outside = _sums_after(probs)
    integral = torch.ones_like(probs)
    if num_draws > 1:
        others = outside + _sums_after(probs.flip(0)).flip(0)
        integral += (probs / others).cumsum(0)
    if num_draws > 2:
        largest = probs.topk(num_draws - 1).indices.sort().values
        slowest = float(probs.index_fill(0, largest, 0.0).sum())
        times = torch.arange(math.log(LOWEST), math.log(DECAY / slowest), STEP, dtype=probs.dtype, device=probs.device)
        for part in times.exp().split(TIMES_AT_ONCE):
            integral += STEP * _integrand(probs, largest.tolist(), slowest, part)
    return (outside * integral).clamp_max(1.0)


def _sums_after(values: torch.Tensor) -> torch.Tensor:
    """Returns the sum of the values after each value: [n] → [n]."""
    return torch.cat([values[1:], values.new_zeros(1)]).flip(0).cumsum(0).flip(0)


def _integrand(probs: torch.Tensor, largest: list[int], slowest: float, times: torch.Tensor) -> torch.Tensor:
    """Returns Σ_t t exp(−t) Σ_{1<j<k} e_j(exp(q t) − 1) over the first n tokens, for every n: [vocab].

    `largest`: the places of the k − 1 largest probabilities in ascending order; `slowest`: the sum of the others. The
    factor exp(−q t) of a largest token is multiplied in at its place, so that no large exponents cancel.
    """
    num_terms = len(largest) + 1
    terms = [torch.zeros_like(times), *[torch.full_like(times, -math.inf)] * (num_terms - 1)]  # logarithms of e_j
    integrals = []
    for number, (start, end) in enumerate(zip([0, *(place + 1 for place in largest)], [*largest, None], strict=True)):
        exponents = probs[start:end, None] * times
        logs = exponents + torch.log(-torch.expm1(-exponents))  # [tokens, times]
        rest = (float(probs[largest[number:]].sum()) + slowest) * times
        grown = terms[0].expand(len(logs) + 1, -1)
        sums = torch.zeros_like(grown[:, 0])
        for power in range(1, num_terms):
            grown = torch.cat([terms[power][None], logs + grown[:-1]]).logcumsumexp(0)
            terms[power] = grown[-1]
            if power > 1:
                sums += (times * (grown - rest).exp()).sum(1)
        integrals.append(sums)
        if end is not None:
            exponent = probs[end] * times
            drawn = torch.log(-torch.expm1(-exponent))
            more = [torch.logaddexp(term - exponent, less + drawn) for less, term in pairwise(terms)]
            terms = [terms[0] - exponent, *more]
    return torch.cat(integrals)[1:]  # the first sum is over no tokens
