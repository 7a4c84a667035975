"""Verification rules: they decide which draft tokens are accepted, and draw the token after them.

A rule maps (proposal, target distributions, generator) to a Verification. There is a target distribution for each draft
position and for the next position: num_drafted + 1 rows.
"""

import math
import operator
import warnings
from collections.abc import Callable
from typing import Annotated, Literal, cast

import torch
from pydantic import Field

from specbench.core.registry import RULES
from specbench.decoding.proposal import OUT_OF_VOCABULARY, Column, Proposal, TreeProposal, Verification, at_tokens
from specbench.decoding.sampling import DenseProbs, Distributions, draw, draw_rows


class VerificationRule:
    """Decides which draft tokens are accepted and draws the token after them."""

    compares_processed = False  # whether the rule compares the distributions after temperature and truncation

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        """Verifies a proposal of n tokens, given the target's distributions at its n positions and the next one."""
        raise NotImplementedError

    def child_chance(self, tree: TreeProposal, node: int, target: Distributions) -> float | None:
        """Returns the chance that a child of an accepted node of a tree (−1: the root) is accepted, given the tree;
        None if it is unknown."""
        return None


@RULES.register("rejection", requires={"probs"})
class Rejection(VerificationRule):
    """A draft token x is accepted with probability min(1, p(x)/q(x)), where p is the target's distribution and q the
    drafter's. After a rejection the next token is drawn from the residual, norm(max(p − q, 0)) (arXiv:2211.17192,
    Alg. 1)."""

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        if proposal.num_drafted == 0:
            draw_overlap = _draw_overlap(proposal, [], target) if proposal.ended else None
            return Verification(0, target.draw(0, generator), draw_overlap=draw_overlap)
        if target.sampling.greedy:
            return _greedy_rejection(proposal, target)
        assert proposal.probs is not None
        token_ids = proposal.on(target.probs.device)
        verified_probs = target.probs[: len(token_ids)]
        target_prob = at_tokens(verified_probs, token_ids)
        draft_prob = proposal.probs.token_probs(token_ids)
        uniform = torch.rand(len(token_ids), generator=generator, device=verified_probs.device)
        place, are_all = proposal.accepted_prefix(uniform * draft_prob < target_prob)
        # The next token is drawn from the residual at `place`, or from p if all tokens are accepted (bonus token).
        probs = target.probs.index_select(0, place)[0]
        if proposal.probs.residual_is_sampled:
            (num_accepted,), (all_stand,) = proposal.read(place, are_all)
            sample = proposal.probs.sample_residual
            next_token = draw(probs, generator) if all_stand else sample(num_accepted, probs, generator)
        else:
            rest = proposal.probs.residual(place.clamp_max(len(token_ids) - 1), probs)
            drawn = draw_rows(torch.where(are_all, probs, rest)[None], generator)
            (num_accepted,), (next_token,) = proposal.read(place, drawn)
        overlap = proposal.probs.overlap(verified_probs)
        draw_overlap = _draw_overlap(proposal, overlap, target)
        return Verification(num_accepted, next_token, target_prob, draft_prob, overlap, draw_overlap=draw_overlap)


rejection = Rejection()


def _draw_overlap(proposal: Proposal, overlap: Column, target: Distributions) -> Column:
    """Returns `Verification.draw_overlap`, given `overlap`; None unless the draft withholds its end token."""
    draft = proposal.probs
    if draft is None:
        return None
    column = overlap if isinstance(overlap, torch.Tensor) else target.logits.new_zeros(0, dtype=torch.float32)
    if not (target.sampling.greedy and draft.is_one_hot):
        return draft.draw_overlap(column, target)
    if not draft.withholds_end:
        return None
    # At temperature 0, an end token is drawn with probability 0 or 1.
    return [*cast(list[float], overlap), *[0.0] * proposal.ended]


def _greedy_rejection(proposal: Proposal, target: Distributions) -> Verification:
    """Verifies at temperature 0: p is one-hot, so x is accepted iff x = argmax p, and Σ min(p, q) = q(argmax p)."""
    (best,) = proposal.read(target.best)
    matches = [token == choice for token, choice in zip(proposal.token_ids, best, strict=False)]
    num_accepted = count_leading(matches)
    target_prob = [float(match) for match in matches]
    draft = proposal.probs
    if draft is None:  # greedy verification does not need the drafter's probabilities
        return Verification(num_accepted, best[num_accepted], target_prob)
    if draft.is_one_hot:
        draw_overlap = _draw_overlap(proposal, target_prob, target)
        ones = [1.0] * len(matches)
        return Verification(num_accepted, best[num_accepted], target_prob, ones, target_prob, draw_overlap=draw_overlap)
    token_ids = proposal.on(target.logits.device)
    overlap = draft.token_probs(target.best[: len(token_ids)])
    draw_overlap = _draw_overlap(proposal, overlap, target)
    draft_prob = draft.token_probs(token_ids)
    return Verification(num_accepted, best[num_accepted], target_prob, draft_prob, overlap, draw_overlap=draw_overlap)


@RULES.register("exact_match", verifies_trees=True)
class ExactMatch(VerificationRule):
    """A token is drawn from the target at every position; draft tokens are accepted while they equal it
    (arXiv:2502.05202, Alg. 2). In a draft tree the path goes from each token to its child that equals the target's.
    Lossless for any draft, since every output token is drawn from the target; a draft token x is accepted with
    probability p(x)."""

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        (own,) = proposal.read(target.draw_all(generator))
        if isinstance(proposal, TreeProposal):
            return _descend(proposal, target, own)
        matches = [token == choice for token, choice in zip(proposal.token_ids, own, strict=False)]
        num_accepted = count_leading(matches)
        if not matches:
            return Verification(0, own[0])
        if target.sampling.greedy:
            target_prob: Column = [float(match) for match in matches]
        else:
            token_ids = proposal.on(target.probs.device)
            target_prob = at_tokens(target.probs[: len(token_ids)], token_ids)
        return Verification(num_accepted, own[num_accepted], target_prob, overlap=target_prob)

    def child_chance(self, tree: TreeProposal, node: int, target: Distributions) -> float | None:
        token_ids = {tree.token_ids[child] for child in tree.children(node)}
        return float(target.probs[node + 1, list(token_ids)].sum())


exact_match = ExactMatch()


def _descend(proposal: TreeProposal, target: Distributions, own: list[int]) -> Verification:
    """Walks down a tree from the root, each time to the child that equals the target's own token, as far as possible.

    `own`: the tokens drawn from the target after the sequence and after each node, [num_nodes + 1].
    """
    path: list[int] = []
    node = -1
    while (child := proposal.child(node, own[node + 1])) is not None:
        path.append(child)
        node = child
    parents = torch.tensor(proposal.parents, dtype=torch.long, device=target.logits.device) + 1
    of_nodes = at_tokens(target.probs.index_select(0, parents), proposal.on(target.logits.device))
    of_children = of_nodes.new_zeros(len(own)).index_add(0, parents, of_nodes)
    visited = torch.tensor([0, *(node + 1 for node in path)], device=target.logits.device)
    return Verification(len(path), own[node + 1], overlap=of_children.index_select(0, visited), nodes=tuple(path))


def count_leading(flags: list[bool]) -> int:
    return flags.index(False) if False in flags else len(flags)


Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
TOP_K = 50
MAX_JS = math.log(2.0)


def kl(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Returns KL(target‖draft) = Σ p (ln p − ln q).

    q is at least the smallest normal float32 number, so that the divergence stays finite (≤ 88) where the draft gives
    no probability to a token that the target may draw.
    """
    draft_probs = draft_probs.clamp_min(torch.finfo(draft_probs.dtype).tiny)
    terms: torch.Tensor = torch.xlogy(target_probs, target_probs) - torch.xlogy(target_probs, draft_probs)
    return terms.sum(-1)


def reverse_kl(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Returns KL(draft‖target)."""
    return kl(draft_probs, target_probs)


def js(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Returns the Jensen–Shannon divergence ½KL(p‖m) + ½KL(q‖m), m = (p + q)/2; at most ln 2."""
    middle = (target_probs + draft_probs) / 2
    return ((kl(target_probs, middle) + kl(draft_probs, middle)) / 2).clamp_min(0.0)


def js_reference(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Returns "js_div" of the published code: ½KL(m‖p) + ½KL(m‖q), m = (p + q)/2; unbounded."""
    middle = (target_probs + draft_probs) / 2
    return (kl(middle, target_probs) + kl(middle, draft_probs)) / 2


def tv(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Returns the total variation distance ½ Σ |p − q|."""
    return (target_probs - draft_probs).abs().sum(-1) / 2


def top_k(divergence: Divergence) -> Divergence:
    """Returns the divergence restricted to the target's 50 most probable tokens and one bucket for all others."""

    def over_buckets(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        best = target_probs.topk(min(TOP_K, target_probs.shape[-1]), dim=-1).indices
        return divergence(_with_rest(target_probs, best), _with_rest(draft_probs, best))

    return over_buckets


def _with_rest(probs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    top = probs.gather(-1, chosen)
    rest = probs.scatter(-1, chosen, 0.0).sum(-1, keepdim=True)
    return torch.cat([top, rest], dim=-1)


WHOLE = {divergence.__name__: divergence for divergence in (js, kl, reverse_kl, tv)}
DIVERGENCES: dict[str, Divergence] = {
    **WHOLE,
    "js_reference": js_reference,
    **{f"top_k_{name}": top_k(divergence) for name, divergence in WHOLE.items()},
}


ROUNDING = 1e-4  # tolerance for a sum of float32 probabilities
DivergenceName = Literal[
    "js", "kl", "reverse_kl", "tv", "js_reference", "top_k_js", "top_k_kl", "top_k_reverse_kl", "top_k_tv"
]


DIVERGENCE = (
    "How far apart the two distributions are, in nats (tv: 0 to 1): kl is KL(target‖draft), reverse_kl is "
    "KL(draft‖target), js_reference is the formula of the published code; top_k_… look at the target's 50 most "
    "probable tokens and one bucket for all others."
)
THRESHOLD = (
    "A draft token is accepted while the divergence at its position is below it (js_reference: also if it is equal, as "
    "in the published code). 0 accepts almost nothing; .inf accepts everything."
)
DIVERGENCE_ON = (
    "raw compares the softmaxes of both models at temperature 1, untruncated, as the published code does; processed "
    "compares what tokens are drawn from, and needs both temperatures above 0."
)


@RULES.register("fuzzy", requires={"probs", "raw_probs"})
class Fuzzy(VerificationRule):
    """A draft token is accepted while the divergence of target and draft at its position is below the threshold. After
    a rejection the next token is drawn from the target (arXiv:2502.20704, §4).

    A threshold has a meaning only together with its divergence. The paper's thresholds (0.3, 0.4 and 0.7, one for each
    of its model pairs) belong to `reverse_kl`, as its first author stated later; `js` never exceeds ln 2 = 0.693.
    """

    def __init__(
        self,
        *,
        divergence: Annotated[DivergenceName, Field(description=DIVERGENCE)],
        threshold: Annotated[float, Field(ge=0, allow_inf_nan=True, description=THRESHOLD)],
        divergence_on: Annotated[Literal["raw", "processed"], Field(description=DIVERGENCE_ON)] = "raw",
    ) -> None:
        if divergence in ("js", "top_k_js") and MAX_JS < threshold < math.inf:
            warnings.warn(
                f"{divergence} never exceeds ln 2 = 0.693: threshold {threshold:g} accepts everything", stacklevel=2
            )
        self.measure = DIVERGENCES[divergence]
        self.threshold = threshold
        self.is_close = operator.le if divergence == "js_reference" else operator.lt
        self.compares_processed = divergence_on == "processed"

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        num_drafted = proposal.num_drafted
        if num_drafted == 0:
            return Verification(0, target.draw(0, generator))
        draft = cast(DenseProbs, proposal.probs)
        if self.compares_processed:
            target_probs, draft_probs = target.probs[:num_drafted], draft.probs
        else:
            target_probs, draft_probs = target.raw_probs[:num_drafted], draft.raw_probs
        if isinstance(draft, Distributions):
            values = self.measure(target_probs, draft_probs)
        else:  # one more column for the tokens that the target's vocabulary lacks
            others = 1 - draft_probs.sum(dim=-1, keepdim=True)
            others = others.masked_fill(others < ROUNDING, 0.0)
            whole = torch.cat([target_probs, torch.zeros_like(others)], dim=-1)
            values = self.measure(whole, torch.cat([draft_probs, others], dim=-1))
        token_ids = proposal.on(values.device)
        accepts = self.is_close(values, self.threshold) & (token_ids != OUT_OF_VOCABULARY)
        place, _ = proposal.accepted_prefix(accepts)
        # The next token is drawn from p, not from the residual, even after a rejection.
        (num_accepted,), (next_token,) = proposal.read(place, target.draw_at(place, generator))
        target_prob, draft_prob = (at_tokens(probs, token_ids) for probs in (target_probs, draft_probs))
        return Verification(num_accepted, next_token, target_prob, draft_prob, divergence=values)


PROBABILITY = "The probability that a draft token is accepted."


@RULES.register("random_accept")
class RandomAccept(VerificationRule):
    """Every draft token is accepted with the same fixed probability; after a rejection the next token is drawn from p.
    The control experiment of arXiv:2502.20704, App. E: a fuzzy rule that does not depend on the models."""

    def __init__(self, *, probability: Annotated[float, Field(ge=0, le=1, description=PROBABILITY)]) -> None:
        self.probability = probability

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        token_ids = proposal.on(target.logits.device)
        uniform = torch.rand(len(token_ids), generator=generator, device=target.logits.device)
        place, _ = proposal.accepted_prefix((uniform < self.probability) & (token_ids != OUT_OF_VOCABULARY))
        (num_accepted,), (next_token,) = proposal.read(place, target.draw_at(place, generator))
        rates = [self.probability * (token != OUT_OF_VOCABULARY) for token in proposal.token_ids]
        return Verification(num_accepted, next_token, overlap=rates)
