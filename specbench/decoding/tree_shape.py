"""Shapes of draft trees: the number and the ranks of the candidates that follow each node."""

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.values import depths

NUM_NODES = "The number of draft tokens in a tree."
RANK_CHANCES = "The chance that the token of each rank, from the most probable on, is accepted; they shape the tree."
DEPTH = "The largest number of draft tokens on a path."
Chance = Annotated[float, Field(gt=0, le=1)]
NumNodes = Annotated[int, Field(ge=1, le=1024, description=NUM_NODES)]
RankChances = Annotated[list[Chance], Field(min_length=1, max_length=64, description=RANK_CHANCES)]
# Chances by rank for drafters without known chances. They are chosen, not measured: with 80 nodes on at most 6 levels
# they give 8, 21, 25, 15, 10 and 1 nodes; token recycling's published tree has 8, 21, 25, 15, 8 and 3.
USUAL_CHANCES = [0.58, 0.27, 0.21, 0.09, 0.08, 0.07, 0.055, 0.05]


@dataclass(frozen=True)
class TreeShape:
    """A tree in which node i follows node `parents[i]` (−1: the sequence), and its candidate has rank `ranks[i]`, from
    0. Rank −1 marks a token that the target reads for the drafter and that cannot be accepted."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def depth(self) -> int:
        """The number of levels of candidates."""
        return max(depth for depth, rank in zip(depths(self.parents), self.ranks, strict=True) if rank >= 0)

    @property
    def has_equal_widths(self) -> bool:
        """Whether all nodes of a depth have equally many children."""
        num_nodes = [1, *(sum(len(children) for _, children in level) for level in self.levels)]
        return all(
            len(level) == above and len({len(children) for _, children in level}) == 1
            for above, level in zip(num_nodes, self.levels, strict=False)
        )

    @cached_property
    def levels(self) -> list[list[tuple[int, list[int]]]]:
        """By depth, the nodes that have children, with their children in the order of ranks: (node, children)."""
        children: dict[int, list[int]] = {}
        for node in sorted(range(len(self.parents)), key=lambda node: self.ranks[node]):
            children.setdefault(self.parents[node], []).append(node)
        levels: list[list[tuple[int, list[int]]]] = []
        nodes = [-1]
        while any(node in children for node in nodes):
            levels.append([(node, children[node]) for node in nodes if node in children])
            nodes = [child for _, found in levels[-1] for child in found]
        return levels


def best_shape(rank_chances: Sequence[float], num_nodes: int, max_depth: int) -> TreeShape:
    """Returns the tree of `num_nodes` nodes with the largest expected number of accepted tokens, if a candidate of rank
    r is accepted with chance `rank_chances[r]` at every node, given that its parent was."""
    return best_shape_by_level([rank_chances] * max_depth, num_nodes)


def best_shape_by_level(level_chances: Sequence[Sequence[float]], num_nodes: int) -> TreeShape:
    """Returns the tree of `num_nodes` nodes with the largest expected number of accepted tokens.

    A candidate of rank r at depth d is accepted with chance `level_chances[d][r]`, given that its parent was; the
    expected number is the sum of the nodes' chances. The most probable nodes are added one by one (arXiv:2401.10774,
    §2.3.3), which gives the optimum of the dynamic programme of arXiv:2402.12374, §4.1.1, for falling chances. Equal
    chances are ordered by depth and rank.
    """
    parents: list[int] = []
    ranks: list[int] = []
    # (−chance of the node, depth, ranks of its path, parent)
    waiting: list[tuple[float, int, tuple[int, ...], int]] = [(-level_chances[0][0], 1, (0,), -1)]
    while waiting and len(parents) < num_nodes:
        chance, depth, path, parent = heapq.heappop(waiting)
        node, rank = len(parents), path[-1]
        parents.append(parent)
        ranks.append(rank)
        chances = level_chances[depth - 1]
        if rank + 1 < len(chances):
            following = chance / chances[rank] * chances[rank + 1]
            heapq.heappush(waiting, (following, depth, (*path[:-1], rank + 1), parent))
        if depth < len(level_chances):
            heapq.heappush(waiting, (chance * level_chances[depth][0], depth + 1, (*path, 0), node))
    return TreeShape(tuple(parents), tuple(ranks))


def check_chances(rank_chances: Sequence[float]) -> Sequence[float]:
    """Returns the chances. Raises ConfigError unless they fall."""
    if list(rank_chances) != sorted(rank_chances, reverse=True):
        raise ConfigError("drafter.rank_chances: a later rank cannot be more probable: give descending numbers")
    return rank_chances


def regular_shape(widths: Sequence[int]) -> TreeShape:
    """Returns the tree whose nodes at depth d have `widths[d]` children."""
    parents: list[int] = []
    ranks: list[int] = []
    nodes = [-1]
    for width in widths:
        first = len(parents)
        parents += [node for node in nodes for _ in range(width)]
        ranks += [rank for _ in nodes for rank in range(width)]
        nodes = list(range(first, len(parents)))
    return TreeShape(tuple(parents), tuple(ranks))


def fill_shape(
    shape: TreeShape, num_levels: int, last_token: int, ends: Collection[int],
    candidate: Callable[[int, int, int], int | None],
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Returns the tokens and the parents of a tree of this shape, up to `num_levels` levels.

    `candidate(token, depth, rank)` returns the candidate of a rank after a token at a depth from 0, or None. Without a
    candidate, its node and all nodes below it are left out; so are the nodes below an end token.
    """
    tokens: list[int] = []
    parents: list[int] = []
    placed = {-1: (-1, 0)}  # node of the shape → node of the tree, its depth
    for node, (parent, rank) in enumerate(zip(shape.parents, shape.ranks, strict=True)):
        if parent not in placed:
            continue
        above, depth = placed[parent]
        before = last_token if above < 0 else tokens[above]
        if depth == num_levels or (above >= 0 and before in ends):
            continue
        token = candidate(before, depth, rank)
        if token is not None:
            placed[node] = (len(tokens), depth + 1)
            tokens.append(token)
            parents.append(above)
    return tokens, parents
