"""Wrong rules for draft trees, as controls: the exact law of their tokens differs from the target's.

Each has an error that published code has, or a likely one. Where the law were the target's, the test would have no
power.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from specbench.decoding.proposal import Proposal, TreeProposal
from specbench.decoding.tree_rules import (
    BestPathBlock,
    BestPathLaw,
    Choices,
    Level,
    RecursiveRejection,
    Traversal,
    Walked,
    acceptance_probability,
    normalized,
    normalized_residual,
)
from specbench.decoding.verification import exact_match
from tools.tree_laws import (
    Enumerated,
    Law,
    Outcome,
    Rows,
    Table,
    Tokens,
    autoregressive,
    distance,
    from_target,
    sibling_draws,
    table,
    trees,
)

P, Q = table(3), table(1003)


def truncated(whole: Table) -> Table:
    """Returns distributions without their least probable token, as top-k makes them."""

    def after(prefix: Tokens) -> torch.Tensor:
        row = whole(prefix)
        return normalized(row.index_fill(0, row.argmin(), 0.0))

    return after


class WithReplacementResidual(RecursiveRejection):
    """Takes the residual of independent draws for children that were drawn without replacement."""

    def walk(self, proposal: Proposal, target_probs: torch.Tensor, choices: Choices) -> Walked:
        assert isinstance(proposal, TreeProposal)
        proposal.draws = "independent"
        return super().walk(proposal, target_probs, choices)


class SwappedRatio(RecursiveRejection):
    """Accepts with min(1, q/p)."""

    def _verify(self, tree, node, target_probs, choices):  # type: ignore[no-untyped-def]
        draft = tree.draft_probs(node)
        for child in tree.children(node):
            token = tree.token_ids[child]
            if choices.coin(min(1.0, float(draft[token] / target_probs[token]))):
                return child, token
            target_probs = normalized_residual(target_probs, draft)
        return None, choices.token(target_probs)


class WrongTraversalWeight(Traversal):
    """Divides S by the draft's remaining mass, as one public implementation does."""

    def _remove(self, tree, parent, node, target, draft, weights):  # type: ignore[no-untyped-def]
        before = draft[parent].clone()
        super()._remove(tree, parent, node, target, draft, weights)
        if parent != -1:
            weights[parent] = min(1.0, weights[parent] / float(1 - before[tree.token_ids[node]] + 1e-9))


class OneDraw(BestPathLaw):
    """Takes the drafter's q for the law of the best path."""

    def next_probs(self, level: Level) -> torch.Tensor:
        return level.drawn


class JudgedByTheDrafter(BestPathBlock):
    def law(self) -> BestPathLaw:
        return OneDraw()


class DrawnAgain(Enumerated):
    """Draws the token after the accepted ones again, as Medusa's nucleus sampling and REST do."""

    def outcomes(self, proposal: Proposal, target_probs: torch.Tensor) -> Iterator[Outcome]:
        for mass, path, _ in super().outcomes(proposal, target_probs):
            for token, probability in enumerate(target_probs[path[-1] + 1 if path else 0].tolist()):
                yield mass * probability, path, token


class UntruncatedBonus(RecursiveRejection):
    """Draws the token after a leaf from the target's whole distribution, as Spec-Bench's EAGLEs do."""

    def __init__(self, whole: Table) -> None:
        self.whole = whole

    def walk(self, proposal: Proposal, target_probs: torch.Tensor, choices: Choices) -> Walked:
        path, token = super().walk(proposal, target_probs, choices)
        if path and not proposal.has_children(path[-1]):
            token = choices.token(self.whole(tuple(proposal.token_ids[node] for node in path)))
        return path, token


def pruned_after_the_draw(q: Table) -> Iterator[tuple[float, TreeProposal]]:
    """Yields trees of which only the child with the larger q is kept, of two that were drawn without replacement."""
    for mass, tokens in sibling_draws(q(()), 2, "without_replacement"):
        kept = max(tokens, key=lambda token: float(q(())[token]))
        yield mass, TreeProposal([kept], [-1], "without_replacement", Rows([q(())]), [-1])


def truncated_and_verified_by_the_whole(q: Table) -> Iterator[tuple[float, TreeProposal]]:
    """Yields trees drawn from the truncated q that state the whole one."""
    for mass, tree in trees(truncated(q), (2,), "independent"):
        yield mass, TreeProposal(tree.token_ids, tree.parents, "independent", Rows([q(())]), [-1])


def reused_coin(p: Table, q: Table, *, is_reused: bool = True) -> float:
    """Returns the distance from the target of the law of three tokens, of two steps with drafts of one token each. The
    coin of the second step is that of the first, as in Sequoia's code, or else a new one."""
    found: Law = {}
    for first, emitted, low, high in verified(p, q, (), 0.0, 1.0):
        interval = (low, high) if is_reused else (0.0, 1.0)
        for second, more, _, _ in verified(p, q, emitted, *interval):
            for tokens, mass in autoregressive(p, more[:3], 3):
                found[tokens] = found.get(tokens, 0.0) + first * second * mass
    return from_target(found, p, 3)


def verified(
    p: Table, q: Table, prefix: Tokens, low: float, high: float
) -> Iterator[tuple[float, Tokens, float, float]]:
    """Yields (probability, tokens, coin's interval) for all outcomes of a step with a draft of one token, given a coin
    that is uniform between `low` and `high`. The draft token is accepted if the coin is below min(1, p/q)."""
    target, draft = p(prefix), q(prefix)
    for token, drawn in enumerate(draft.tolist()):
        limit = min(max(acceptance_probability(target[token], draft[token]), low), high)
        taken, accepted = (limit - low) / (high - low), (*prefix, token)
        for bonus, mass in enumerate(p(accepted).tolist()):
            if taken > 0:
                yield drawn * taken * mass, (*accepted, bonus), low, limit
        for other, mass in enumerate(normalized_residual(target, draft).tolist()):
            if taken < 1:
                yield drawn * (1 - taken) * mass, (*prefix, other), limit, high


class Control(NamedTuple):
    """A wrong rule: its error, its draft, and how to compute the total variation of its law from the target's."""

    error: str
    draft: str
    distance: Callable[[], float]


TWO = "two children, "
CONTROLS = (
    Control(
        "the residual of independent draws", f"{TWO}drawn without replacement",
        lambda: distance(WithReplacementResidual(), P, trees(Q, (2,), "without_replacement"), 2),
    ),
    Control(
        "accepts with min(1, q/p)", f"{TWO}drawn independently",
        lambda: distance(SwappedRatio(), P, trees(Q, (2,), "independent"), 2),
    ),
    Control(
        "keeps the more probable child after the draw", f"{TWO}drawn without replacement",
        lambda: distance(RecursiveRejection(), P, pruned_after_the_draw(Q), 2),
    ),
    Control(
        "compares a draw of the target and draws the next token again", f"{TWO}fixed",
        lambda: distance(DrawnAgain(exact_match), P, trees(Q, (2,), "fixed"), 2),
    ),
    Control(
        "takes the coin of the first step for the second", "a chain of 1, in each of two steps",
        lambda: reused_coin(P, Q),
    ),
    Control(
        "draws the bonus token from p before truncation", f"{TWO}drawn independently",
        lambda: distance(UntruncatedBonus(P), truncated(P), trees(Q, (2,), "independent"), 2),
    ),
    Control(
        "judges by q before truncation", f"{TWO}drawn independently",
        lambda: distance(RecursiveRejection(), P, truncated_and_verified_by_the_whole(Q), 2),
    ),
    Control(
        "divides the weight of traversal by the mass that is left", "tree (2, 2), drawn without replacement",
        lambda: distance(WrongTraversalWeight(), P, trees(Q, (2, 2), "without_replacement"), 3),
    ),
    Control(
        "takes q for the law of the best of several paths", "tree (2, 1), drawn independently",
        lambda: distance(JudgedByTheDrafter(), P, trees(Q, (2, 1), "independent"), 3),
    ),
)  # fmt: skip
