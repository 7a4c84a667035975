"""Draft trees as lists of parents: node i follows node `parents[i]`, and −1 is the sequence before the tree."""

from collections.abc import Sequence


def depths(parents: Sequence[int]) -> list[int]:
    """Returns the depth of each node, 1 for the children of the sequence: [num_nodes]."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found
