"""Rules for draft trees, and the optimum over lossless ones."""

import itertools

import torch

from specbench.core.registry import RULES as REGISTRY
from specbench.decoding.tree_rules import (
    BestPathBlock,
    GreedyMultiDraft,
    KSeq,
    RecursiveRejection,
    Traversal,
    WalkingRule,
)
from tools.tree_laws import (
    VOCAB,
    Tokens,
)

RULES: dict[str, WalkingRule] = {
    "recursive_rejection": RecursiveRejection(), "k_seq": KSeq(), "greedy_multi_draft": GreedyMultiDraft(),
    "traversal": Traversal(), "best_path_block": BestPathBlock(),
}  # fmt: skip
CASES = [(name, draws) for name in RULES for draws in sorted(REGISTRY.features(name).draws or ())]


def optimum(p: torch.Tensor, drafts: list[tuple[float, Tokens]]) -> float:
    """Returns the largest chance that any rule accepts a child: min over H of P(H) + 1 − Pr(all children ⊆ H)."""
    subsets = itertools.chain.from_iterable(itertools.combinations(range(VOCAB), size) for size in range(VOCAB + 1))
    return min(
        sum(float(p[token]) for token in kept) + 1 - sum(mass for mass, tokens in drafts if set(tokens) <= set(kept))
        for kept in subsets
    )
