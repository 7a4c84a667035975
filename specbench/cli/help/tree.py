"""A method's draft tree, drawn as text, and the parts of a step."""

import re
from inspect import cleandoc
from typing import Any

from pydantic import BaseModel

from specbench.core.trees import depths
from specbench.decoding.tree_shape import TreeShape, best_shape
from specbench.specs.method import MethodSpec, proposes_trees

EXAMPLE = (0.5, 0.2, 0.1)  # acceptance rates by rank in the example of a growing tree
MAX_LINES = 24  # of a drawing; more paths are cut
NOT_JUDGED = -1  # rank of a token that the target reads only for the drafter, and that cannot be accepted


class TreeHelp(BaseModel):
    """The tree and the step of a method.

    `is_example`: whether the tree grows as it is drafted, so that the drawing is one of many. `nodes_by_depth`: numbers
    of draft tokens that can be accepted. `num_own`: number of tokens that cannot.
    """

    is_example: bool
    nodes_by_depth: list[int]
    num_own: int
    drawing: list[str]
    step: list[str]


def tree_help(method: MethodSpec) -> TreeHelp | None:
    """Returns the tree and the step of a method, or None if it drafts chains or nothing."""
    if not proposes_trees(method):
        return None
    options = method.drafter.options
    assert method.drafter.features.tree_shape is not None
    found = method.drafter.features.tree_shape(**options)
    known = found if isinstance(found, TreeShape) else None
    shape = known or best_shape(EXAMPLE, min(options.get("num_nodes") or 12, 12), method.num_draft_tokens)
    depth_of = depths(shape.parents)
    allowed = [
        node for node, (rank, depth) in enumerate(zip(shape.ranks, depth_of, strict=True))
        if rank == NOT_JUDGED or depth <= method.num_draft_tokens
    ]  # fmt: skip
    counts = [depth_of[node] for node in allowed if shape.ranks[node] != NOT_JUDGED]
    return TreeHelp(
        is_example=known is None,
        nodes_by_depth=[counts.count(depth) for depth in range(1, max(counts) + 1)],
        num_own=len(allowed) - len(counts),
        drawing=drawing(shape, set(allowed)),
        step=step_lines(method, None if known is None else len(allowed), options),
    )


def drawing(shape: TreeShape, nodes: set[int]) -> list[str]:
    """Returns the tree from left to right with one line per leaf. A node is its rank among siblings, from 1."""
    children: dict[int, list[int]] = {}
    for node in sorted(nodes, key=lambda node: (shape.ranks[node] == NOT_JUDGED, shape.ranks[node], node)):
        children.setdefault(shape.parents[node], []).append(node)

    def paths(node: int) -> list[str]:
        below = children.get(node, [])
        lines: list[str] = []
        for place, child in enumerate(below):
            label = "w" if shape.ranks[child] == NOT_JUDGED else str(shape.ranks[child] + 1)
            is_last = place == len(below) - 1
            start = ("───" if is_last else "─┬─") if place == 0 else (" └─" if is_last else " ├─")
            first, *others = paths(child)
            lines.append(start + label + first)
            lines += [("   " if is_last else " │ ") + " " * len(label) + line for line in others]
        return lines or [""]

    first, *others = paths(-1)
    lines = [f"last token{first}", *(" " * len("last token") + line for line in others)]
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[:MAX_LINES], f"… and {len(lines) - MAX_LINES} more paths"]


def step_lines(method: MethodSpec, num_nodes: int | None, options: dict[str, Any]) -> list[str]:
    """Returns the parts of a step, one line each. `num_nodes`: the size of the tree, if it is fixed."""
    size = num_nodes or options.get("num_nodes")
    growing = "it grows as it is drafted"
    read = f"up to {size} tokens of the tree" if size else "the tokens of the tree"
    return [
        f"draft: {first_sentence(method.drafter.factory)}; {'its shape is fixed' if num_nodes else growing}",
        f"one pass: the target reads its last token and {read}; each attends to the text and to its ancestors, at the "
        "position of its depth",
        f"rule {method.verification.rule}: {first_sentence(method.verification.factory)}",
        "cache: the keys and values of the accepted path are moved to the end of the text, all others are dropped; the "
        f"step emits the accepted tokens and one more: 1 to {method.num_draft_tokens + 1}",
    ]


def first_sentence(code: Any) -> str:
    """Returns the first sentence of a docstring, in one line."""
    text = " ".join(cleandoc(code.__doc__ or "").split())
    return re.split(r"\.\s+(?=[A-Z])", text)[0].rstrip(".")


def tree_lines(found: TreeHelp) -> list[str]:
    """Returns the heading with a legend, then the drawing."""
    size = f"{sum(found.nodes_by_depth)} draft tokens on {len(found.nodes_by_depth)} levels"
    by_depth = ", ".join(map(str, found.nodes_by_depth))
    if found.is_example:
        rates = ", ".join(map(str, EXAMPLE))
        heading = f"it grows as it is drafted; with example acceptance rates {rates} by rank: {size} ({by_depth})"
    else:
        heading = f"at most {size} ({by_depth})"
    if found.num_own:
        own = f"; w: {found.num_own} tokens that the target reads only for the drafter and that cannot be accepted"
    else:
        own = ""
    return [f"{heading}; a number is the rank among the children of a node{own}", *found.drawing]
