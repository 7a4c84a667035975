"""Verification rules for draft trees with tokens from known distributions, and for blocks of a chain.

A rule is written as a walk over the proposal that asks `Choices` for each random choice: the loop draws them, and tests
go through all of them.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from pydantic import Field

from specbench.core.registry import RULES
from specbench.decoding.proposal import OUT_OF_VOCABULARY, Proposal, TreeProposal, Verification, at_tokens
from specbench.decoding.sampling import DenseProbs, Distributions, draw, entropies, in_double, residual
from specbench.decoding.verification import VerificationRule

Walked = tuple[list[int], int]  # the accepted nodes and the next token
Verified = tuple[int | None, int]  # the accepted child of a node, None if all are rejected, and the next token


class Choices:
    """The random choices of a verification, drawn with a generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def coin(self, probability: float) -> bool:
        """Returns True with this probability."""
        return bool(torch.rand((), generator=self._generator, device=self._generator.device) < probability)

    def token(self, weights: torch.Tensor) -> int:
        """Returns a token with unnormalised weights [vocab]."""
        return draw(weights, self._generator)


class AllRejected(Choices):
    """The choices that reject every child that may be rejected. `chance`: of these coins."""

    def __init__(self) -> None:
        self.chance = 1.0

    def coin(self, probability: float) -> bool:
        if probability < 1.0:
            self.chance *= 1.0 - probability
        return probability >= 1.0

    def token(self, weights: torch.Tensor) -> int:
        return int(weights.argmax())


class WalkingRule(VerificationRule):
    """A rule that walks over a proposal, given the target's distributions [num_nodes + 1, vocab] and the drafter's."""

    def walk(self, proposal: Proposal, target_probs: torch.Tensor, choices: Choices) -> Walked:
        """Returns the accepted nodes and the next token."""
        raise NotImplementedError

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        if not proposal.token_ids:
            return Verification(0, target.draw(0, generator))
        path, next_token = self.walk(proposal, target.probs, Choices(generator))
        return Verification(len(path), next_token, nodes=tuple(path))

    def child_chance(self, tree: TreeProposal, node: int, target: Distributions) -> float | None:
        return any_accepted(lambda choices: self.walk(tree, target.probs, choices)) if node == -1 else None


def any_accepted(verify: Callable[[Choices], Walked | Verified]) -> float:
    """Returns the chance that a verification accepts a child: 1 − Π (1 − a) over the coins that reject every child."""
    choices = AllRejected()
    accepted, _ = verify(choices)
    return 1.0 - choices.chance if accepted in (None, []) else 1.0


def acceptance_probability(target_prob: torch.Tensor, draft_prob: torch.Tensor) -> float:
    """Returns min(1, p/q), 0 where p is 0."""
    p, q = float(target_prob), float(draft_prob)
    return 1.0 if p >= q > 0 else 0.0 if p <= 0 else p / q if q > 0 else 1.0


def normalized(weights: torch.Tensor) -> torch.Tensor:
    """Returns the weights divided by their sum; zeros stay zeros."""
    total = weights.sum()
    return weights / total if total > 0 else weights


def normalized_residual(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Returns norm(max(p − q, 0)), [vocab]; p if rounding leaves nothing."""
    return normalized(residual(target_probs, draft_probs))


class DescendingRule(WalkingRule):
    """A rule that verifies the children of the root, then those of the accepted child, and so on."""

    def walk(self, proposal: Proposal, target_probs: torch.Tensor, choices: Choices) -> Walked:
        tree, node = as_tree(proposal), -1
        path: list[int] = []
        while tree.has_children(node):
            child, token = self._verify(tree, node, target_probs[node + 1], choices)
            if child is None:
                return path, token
            path.append(child)
            node = child
        return path, choices.token(target_probs[node + 1])

    def _verify(self, tree: TreeProposal, node: int, target_probs: torch.Tensor, choices: Choices) -> Verified:
        """Verifies the children of one node, at least one."""
        raise NotImplementedError

    def child_chance(self, tree: TreeProposal, node: int, target: Distributions) -> float | None:
        return any_accepted(lambda choices: self._verify(tree, node, target.probs[node + 1], choices))


@RULES.register("recursive_rejection", verifies_trees=True, draws={"fixed", "independent", "without_replacement"})
class RecursiveRejection(DescendingRule):
    """The children of a node are verified in turn: x is accepted with probability min(1, p(x)/q(x)); after a rejection
    the target's p becomes norm(max(p − q, 0)), and q loses x if the children were drawn without replacement
    (arXiv:2305.09781; arXiv:2402.12374)."""

    def _verify(self, tree: TreeProposal, node: int, target_probs: torch.Tensor, choices: Choices) -> Verified:
        draft_probs = None if tree.draws == "fixed" else tree.draft_probs(node)
        for child in tree.children(node):
            token = tree.token_ids[child]
            drawn_from = one_hot(token, target_probs) if draft_probs is None else draft_probs
            if choices.coin(acceptance_probability(target_probs[token], drawn_from[token])):
                return child, token
            target_probs = normalized_residual(target_probs, drawn_from)
            if draft_probs is not None and tree.draws == "without_replacement":
                draft_probs = normalized(draft_probs.index_fill(0, torch.tensor(token, device=draft_probs.device), 0.0))
        return None, choices.token(target_probs)


@RULES.register("k_seq", verifies_trees=True, draws={"independent"})
class KSeq(DescendingRule):
    """The k children of a node, drawn independently, are verified in turn with probability min(1, p(x)/(ρ q(x))), where
    ρ between 1 and k makes the rule exact (SpecTr, arXiv:2310.15141)."""

    def _verify(self, tree: TreeProposal, node: int, target_probs: torch.Tensor, choices: Choices) -> Verified:
        children, p, q = tree.children(node), target_probs, tree.draft_probs(node)
        factor = k_seq_factor(p, q, len(children))
        for child in children:
            token = tree.token_ids[child]
            if choices.coin(acceptance_probability(p[token], factor * q[token])):
                return child, token
        overlap = torch.minimum(q, p / factor)
        share = float(overlap.sum())
        any_accepted = 1.0 - (1.0 - share) ** len(children)
        weights = (p - overlap * (any_accepted / share if share > 0 else 0.0)).clamp_min(0.0)
        return None, choices.token(weights if bool(weights.any()) else p)


def k_seq_factor(target_probs: torch.Tensor, draft_probs: torch.Tensor, num_drafts: int) -> float:
    """Returns the smallest ρ in [1, k] with 1 − (1 − β)^k ≤ ρ β, where β = Σ min(q, p/ρ) (arXiv:2310.15141, §4.3), as
    closely as the probabilities are known, which are float32. Any larger ρ is as lossless."""

    def is_large_enough(factor: float) -> bool:
        share = float(torch.minimum(draft_probs, target_probs / factor).sum())
        return 1.0 - (1.0 - share) ** num_drafts <= factor * share

    low, high = 1.0, float(num_drafts)
    if is_large_enough(low):
        return low
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if is_large_enough(middle) else (middle, high)
    return high


@RULES.register("greedy_multi_draft", verifies_trees=True, draws={"top_and_one"})
class GreedyMultiDraft(DescendingRule):
    """For children that are the drafter's most probable tokens and one token drawn from the others. The drawn one is
    accepted with probability min(1, p(x)/q(x)); else the token from norm(max(p − q, 0)) decides, and one of the most
    probable tokens that equals it is accepted (arXiv:2502.18779)."""

    def _verify(self, tree: TreeProposal, node: int, target_probs: torch.Tensor, choices: Choices) -> Verified:
        *top, drawn = tree.children(node)
        top_ids = torch.tensor([tree.token_ids[child] for child in top], dtype=torch.long, device=target_probs.device)
        draft_probs = normalized(tree.draft_probs(node).index_fill(0, top_ids, 0.0))
        token = tree.token_ids[drawn]
        # The drawn token is verified first: the other order is exact too, but accepts less.
        if choices.coin(acceptance_probability(target_probs[token], draft_probs[token])):
            return drawn, token
        token = choices.token(normalized_residual(target_probs, draft_probs))
        return next((child for child in top if tree.token_ids[child] == token), None), token

    def child_chance(self, tree: TreeProposal, node: int, target: Distributions) -> float | None:
        *top, drawn = (tree.token_ids[child] for child in tree.children(node))
        p = target.probs[node + 1]
        q = normalized(tree.draft_probs(node).index_fill(0, torch.tensor(top, dtype=torch.long, device=p.device), 0.0))
        chance = acceptance_probability(p[drawn], q[drawn])
        return chance + (1.0 - chance) * float(normalized_residual(p, q)[top].sum())


@RULES.register("traversal", verifies_trees=True, draws={"independent", "without_replacement"})
class Traversal(WalkingRule):
    """Verifies whole paths, from the first leaf on, and removes rejected leaves; a path that the token rule would cut
    at one unlikely token can still be accepted (arXiv:2505.12398). It equals block verification on a chain."""

    def walk(self, proposal: Proposal, target_probs: torch.Tensor, choices: Choices) -> Walked:
        tree = as_tree(proposal)
        left = {node: list(tree.children(node)) for node in range(-1, len(tree.token_ids))}
        target = {node: target_probs[node + 1] for node in left}
        draft = {node: tree.draft_probs(node) for node in left if left[node]}
        weights = {-1: 1.0}  # of nodes on the current path, and of those that lost a child
        while True:
            path, node = [], -1
            while left[node]:
                child, before = left[node][0], node
                token = tree.token_ids[child]
                if child not in weights:
                    ratio = float(target[before][token]) / float(draft[before][token])
                    weights[child] = min(1.0, weights[before] * ratio)
                path.append(child)
                node = child
            if choices.coin(weights[node]):
                return path, choices.token(target[node])
            parent = path[-2] if len(path) > 1 else -1
            left[parent].remove(node)
            self._remove(tree, parent, node, target, draft, weights)

    def _remove(
        self, tree: TreeProposal, parent: int, node: int, target: dict[int, torch.Tensor],
        draft: dict[int, torch.Tensor], weights: dict[int, float],
    ) -> None:  # fmt: skip
        """Updates the parent's distributions and weight after the rejection of the leaf `node`."""
        weight = weights[parent]
        rest = (weight * target[parent] - draft[parent]).clamp_min(0.0)
        total = float(rest.sum())
        if total > 0:
            target[parent] = rest / total
        if parent != -1:
            weights[parent] = total / (total + 1.0 - weight) if total + 1.0 - weight > 0 else 1.0
        if tree.draws == "without_replacement":
            place = torch.tensor(tree.token_ids[node], device=rest.device)
            draft[parent] = normalized(draft[parent].index_fill(0, place, 0.0))


@RULES.register("block", requires={"probs"})
class BlockVerification(WalkingRule):
    """Block verification (arXiv:2403.10444): whether a draft is accepted up to a token depends on all tokens before it,
    not on each alone. It never accepts fewer tokens than the rejection rule on average, and as many when greedy."""

    def walk(self, proposal: Proposal, target_probs: torch.Tensor, choices: Choices) -> Walked:
        if isinstance(proposal.probs, DenseProbs):
            draft_probs = proposal.probs.probs
        else:  # one-hot rows
            row = target_probs[0]
            rows = [one_hot(max(token, 0), row) * (token != OUT_OF_VOCABULARY) for token in proposal.token_ids]
            draft_probs = torch.stack(rows)
        num_accepted, token = verify_block(proposal.token_ids, target_probs, draft_probs, choices)
        return list(range(num_accepted)), token


def verify_block(
    tokens: Sequence[int], target_probs: torch.Tensor, draft_probs: torch.Tensor, choices: Choices
) -> tuple[int, int]:
    """Verifies a chain of n tokens that was drawn from `draft_probs` [n or more, vocab], given the target's
    distributions [n + 1, vocab]. Returns the number of accepted tokens and the next token."""
    num_drafted = len(tokens)  # tokens after a drafted end token are not proposed
    token_ids = torch.tensor(tokens, dtype=torch.long, device=target_probs.device)
    p = at_tokens(target_probs[:num_drafted], token_ids).tolist()
    q = at_tokens(draft_probs[:num_drafted], token_ids).tolist()
    weights = [1.0]
    for target_prob, draft_prob in zip(p, q, strict=True):
        weights.append(min(1.0, weights[-1] * target_prob / draft_prob) if draft_prob > 0 else 0.0)
    for number in range(num_drafted, 0, -1):
        weight = weights[number]
        if number == num_drafted:
            if choices.coin(weight):
                return number, choices.token(target_probs[number])
            continue
        rest = (weight * target_probs[number] - draft_probs[number]).clamp_min(0.0)
        total = float(rest.sum())
        if choices.coin(total / (total + 1.0 - weight) if total > 0 else 0.0):
            return number, choices.token(rest)
    return 0, choices.token(normalized_residual(target_probs[0], draft_probs[0]))


@RULES.register("best_path_block", verifies_trees=True, draws={"independent"}, needs_equal_widths=True)
class BestPathBlock(WalkingRule):
    """Of the paths of a tree, takes the one whose first token has the largest p/q, of these the one whose second token
    has, and so on, and verifies it as a block. Which path is taken depends on what was drawn, so its tokens count as
    drawn from the law of the path that is taken, not from the drafter's q. It equals block verification on a chain."""

    def law(self) -> "BestPathLaw":
        return BestPathLaw()

    def walk(self, proposal: Proposal, target_probs: torch.Tensor, choices: Choices) -> Walked:
        tree = as_tree(proposal)
        # 1. Take the best path. Nodes with equal paths stand for each other: the best child of any of them goes on.
        nodes, node = [-1], -1
        law = self.law()
        target_rows, draft_rows = [target_probs[0]], []
        while children := [child for each in nodes for child in tree.children(each)]:
            level = Level(target_probs[node + 1], tree.draft_probs(node), len(tree.children(node)))
            best = max({tree.token_ids[child] for child in children}, key=level.place)
            draft_rows.append(law.next_probs(level).to(target_probs))
            law.append(level, best)
            nodes = [child for child in children if tree.token_ids[child] == best]
            node = nodes[0]
            target_rows.append(target_probs[node + 1])
        path = path_to(tree, node)
        # 2. Verify it.
        tokens = [tree.token_ids[each] for each in path]
        num_accepted, token = verify_block(tokens, torch.stack(target_rows), torch.stack(draft_rows), choices)
        return path[:num_accepted], token


class Level:
    """The order of tokens after a node of which `num_children` were drawn from `draft_probs` [vocab]: by p/q, then by
    id. `below` [vocab]: the chance that a draw comes before each token; `drawn` [vocab]: that it is the token."""

    def __init__(self, target_probs: torch.Tensor, draft_probs: torch.Tensor, num_children: int) -> None:
        p, q = in_double(target_probs), in_double(draft_probs)
        self.drawn = q / q.sum()
        self.num_children = num_children
        ratio = torch.where(self.drawn > 0, p / self.drawn, 0.0)
        order = ratio.argsort(stable=True)
        self._places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        sums = self.drawn[order].cumsum(0)
        self.below = torch.cat([sums.new_zeros(1), sums[:-1]])[self._places]

    def place(self, token: int) -> int:
        return int(self._places[token])


class BestPathLaw:
    """The law of the best path of a tree in which a node at depth d has K_d children, drawn independently.

    Let a sibling be at most (x, rest) if its token comes before x, or is x and the best path below it is at most
    `rest`. This has the chance F(x) + q(x) · u^K, where u is the chance that one child below is at most `rest`, and all
    K siblings are at most (x, rest) with the K-th power of it. The same with "before" gives a lower bound l; the best
    path begins with these tokens with chance u^K − l^K. Differences are taken as (u − l) Σ u^i l^(K−1−i), so that
    nothing cancels.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, int]] = []  # F and q of the tokens taken, and K, from the root on

    def append(self, level: Level, token: int) -> None:
        self._taken.append((float(level.below[token]), float(level.drawn[token]), level.num_children))

    def next_probs(self, level: Level) -> torch.Tensor:
        """Returns the law of the path's next token, given the tokens taken: [vocab]."""
        upper, lower, share = level.below + level.drawn, level.below, level.drawn
        share = share * sum_of_products(upper, lower, level.num_children)
        upper, lower = upper**level.num_children, lower**level.num_children
        for below, drawn, num_children in reversed(self._taken):
            upper, lower = below + drawn * upper, below + drawn * lower
            share = share * sum_of_products(upper, lower, num_children)
            upper, lower = upper**num_children, lower**num_children
        return normalized(share)


def sum_of_products(upper: torch.Tensor, lower: torch.Tensor, power: int) -> torch.Tensor:
    """Returns (u^n − l^n) / (u − l) = Σ u^i l^(n−1−i)."""
    return torch.stack([upper**i * lower ** (power - 1 - i) for i in range(power)]).sum(0)


def path_to(tree: TreeProposal, node: int) -> list[int]:
    """Returns the nodes from the root's child to `node`."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]


EPSILON = "ε: upper bound of the acceptance threshold."
DELTA = "δ in δ · exp(−H), where H is the entropy of the target's distribution in nats."


@RULES.register("typical", verifies_trees=True)
class Typical(VerificationRule):
    """A draft token x is accepted if p(x) > min(ε, δ · exp(−H(p))), and the longest path of such tokens is taken, of
    equally long ones the most probable (arXiv:2401.10774, §2.3.1). The next token is drawn from the target. Greedy
    output is the target's; samples are not."""

    def __init__(
        self,
        *,
        epsilon: Annotated[float, Field(gt=0, le=1, description=EPSILON)] = 0.09,
        delta: Annotated[float, Field(gt=0, le=1, description=DELTA)] = 0.3,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        tree = as_tree(proposal)
        probs = target.probs
        limits = (self.delta * torch.exp(-entropies(probs))).clamp_max(self.epsilon).tolist()
        parents = [parent + 1 for parent in tree.parents]
        chances: list[float] = at_tokens(probs[parents], tree.on(probs.device)).tolist() if parents else []
        best: tuple[int, float, list[int]] = (0, 1.0, [])  # length, probability and nodes of a path
        paths = {-1: best}
        for node, parent in enumerate(tree.parents):
            if parent in paths and node in tree.children(parent) and chances[node] > limits[parent + 1]:
                length, acceptance_probability, path = paths[parent]
                paths[node] = (length + 1, acceptance_probability * chances[node], [*path, node])
                best = max(best, paths[node], key=lambda each: each[:2])
        path = best[2]
        return Verification(len(path), target.draw(path[-1] + 1 if path else 0, generator), nodes=tuple(path))


def as_tree(proposal: Proposal) -> TreeProposal:
    """Returns a proposal as a tree. In a tree that was a chain, every token counts as drawn independently."""
    if isinstance(proposal, TreeProposal):
        return proposal
    parents = list(proposal.parents)
    if isinstance(proposal.probs, DenseProbs):
        return TreeProposal(proposal.token_ids, parents, "independent", proposal.probs, parents)
    return TreeProposal(proposal.token_ids, parents)


def one_hot(token: int, like: torch.Tensor) -> torch.Tensor:
    """Returns the distribution that is 1 at a token: [vocab]."""
    return torch.zeros_like(like).index_fill_(0, torch.tensor(token, device=like.device), 1.0)
