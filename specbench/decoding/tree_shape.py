"""Shapes of fixed draft trees: which ranks of candidates follow which node."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TreeShape:
    """A tree whose node i follows node `parents[i]` (−1: the sequence); its candidate has rank `ranks[i]`, from 0."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]


def best_shape(rank_chances: Sequence[float], num_nodes: int, max_depth: int) -> TreeShape:
    """Returns the tree of `num_nodes` nodes with the largest expected number of accepted tokens.

    A candidate of rank r is accepted with chance `rank_chances[r]` at every node, given that its parent was. The best
    nodes are added one by one, as for Medusa (arXiv:2401.10774, §2.3.3). Equal chances are ordered by depth and rank.
    """
    parents: list[int] = []
    ranks: list[int] = []
    # (−chance of the node, depth, ranks of its path, parent)
    waiting: list[tuple[float, int, tuple[int, ...], int]] = [(-rank_chances[0], 1, (0,), -1)]
    while waiting and len(parents) < num_nodes:
        chance, depth, path, parent = heapq.heappop(waiting)
        node = len(parents)
        parents.append(parent)
        ranks.append(path[-1])
        if path[-1] + 1 < len(rank_chances):
            above = chance / rank_chances[path[-1]] if rank_chances[path[-1]] else 0.0
            heapq.heappush(waiting, (above * rank_chances[path[-1] + 1], depth, (*path[:-1], path[-1] + 1), parent))
        if depth < max_depth:
            heapq.heappush(waiting, (chance * rank_chances[0], depth + 1, (*path, 0), node))
    return TreeShape(tuple(parents), tuple(ranks))
